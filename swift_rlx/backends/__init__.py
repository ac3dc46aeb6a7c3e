"""Rollout backends: what turns prompts into completions, behind one small protocol."""

from swift_rlx.backends.base import (
    Backend,
    Capabilities,
    GenerationRequest,
    Health,
    WeightUpdate,
    resolve_weight_update,
)

__all__ = [
    "Backend",
    "Capabilities",
    "GenerationRequest",
    "Health",
    "WeightUpdate",
    "resolve_weight_update",
]
