"""Rollout backends: what turns prompts into completions, behind one small protocol."""

from swift_rlx.backends.base import (
    Backend,
    Capabilities,
    GenerationRequest,
    Health,
    WeightUpdate,
    resolve_weight_update,
)
from swift_rlx.backends.engine import BACKENDS, Engine, EngineFactory, EngineSpec
from swift_rlx.backends.progress import OnProgress, unwatched
from swift_rlx.backends.weights import Probe, WeightFiles, WeightKind

__all__ = [
    "BACKENDS",
    "Backend",
    "Capabilities",
    "Engine",
    "EngineFactory",
    "EngineSpec",
    "GenerationRequest",
    "Health",
    "OnProgress",
    "Probe",
    "WeightFiles",
    "WeightKind",
    "WeightUpdate",
    "resolve_weight_update",
    "unwatched",
]
