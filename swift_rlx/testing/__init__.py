"""For tests: conformance suites for rewards and engines, a stand-in for an installed package, fakes, virtual time.

from swift_rlx.testing import check_reward

def test_my_reward():
    check_reward("my_reward", examples=["some completion", "another one"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swift_rlx.testing.engine_suite import EngineCase as EngineCase
    from swift_rlx.testing.engine_suite import check_engine as check_engine
    from swift_rlx.testing.fake_backend import FakeBackend as FakeBackend
    from swift_rlx.testing.installed_package import fake_distribution as fake_distribution
    from swift_rlx.testing.reward_suite import Example as Example
    from swift_rlx.testing.reward_suite import check_reward as check_reward
    from swift_rlx.testing.virtual_clock import run_virtual as run_virtual

# Loaded on first use: the simulator needs the fake backend, and not the torch of the reward suite. No module here
# may be called like one of these names: once imported, it would stand in the name's place.
_LAZY = {
    "EngineCase": "engine_suite",
    "Example": "reward_suite",
    "FakeBackend": "fake_backend",
    "check_engine": "engine_suite",
    "check_reward": "reward_suite",
    "fake_distribution": "installed_package",
    "run_virtual": "virtual_clock",
}

__all__ = [
    "EngineCase",
    "Example",
    "FakeBackend",
    "check_engine",
    "check_reward",
    "fake_distribution",
    "run_virtual",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'swift_rlx.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"swift_rlx.testing.{_LAZY[name]}"), name)
