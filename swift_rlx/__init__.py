"""Exact RLOO and REINFORCE++ training for ms-swift.

This module is imported in every `swift` process, and from Python 3.15 on (`swift_rlx.start`) at the start of
every Python: it imports nothing itself, and the public names below are loaded on first use.
"""

TYPE_CHECKING = False  # `typing` alone would cost milliseconds
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "RLOOTrainer": "swift_rlx.trainers",
    "RLXConfig": "swift_rlx.integration.training_config",
    "ReinforcePPBaselineTrainer": "swift_rlx.trainers",
    "ReinforcePPTrainer": "swift_rlx.trainers",
    "RolloutScheduler": "swift_rlx.scheduler",
    "TrajectoryStore": "swift_rlx.store",
    "register_reward": "swift_rlx.rewards",
}

__all__ = [*sorted(_LAZY), "__version__"]


def __getattr__(name: str) -> "Any":
    import importlib

    if name not in _LAZY:
        raise AttributeError(f"module 'swift_rlx' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
