"""Exact RLOO and REINFORCE++ training for ms-swift.

This module is imported by entry points in every `swift` process: it stays free of heavy imports, and the public
names below are loaded on first use.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "RLOOTrainer": "swift_rlx.trainers",
    "ReinforcePPBaselineTrainer": "swift_rlx.trainers",
    "ReinforcePPTrainer": "swift_rlx.trainers",
    "register_reward": "swift_rlx.rewards",
}

__all__ = [*sorted(_LAZY), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'swift_rlx' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
