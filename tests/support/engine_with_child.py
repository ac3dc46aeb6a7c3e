"""The fake engine, with a process of its own that does nothing, as other engines have some that work.

`EngineSpec("engine_with_child:create", ...)`, with the options of the fake engine.
"""

from __future__ import annotations

import subprocess

from swift_rlx.backends import EngineSpec
from swift_rlx.testing import fake_engine


def create(spec: EngineSpec) -> fake_engine.FakeEngine:
    """The factory. The process ends with its group."""
    subprocess.Popen(["sleep", "60"])
    return fake_engine.create(spec)
