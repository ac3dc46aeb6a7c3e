"""Time as a parameter: everything below the trainers asks a `Clock`, so that tests and simulations can own it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A call that is planned."""

    def cancel(self) -> None:
        """Forget the call; without effect once it has run."""


class Clock(Protocol):
    """Seconds that never run backwards; their zero means nothing. Used within a running asyncio loop."""

    def now(self) -> float:
        """Seconds."""

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` once after that many seconds."""


class LoopClock:
    """The time of the running asyncio loop: real time on an ordinary loop, virtual on a virtual one."""

    def now(self) -> float:
        """Seconds of the running loop."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds of the running loop."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` after that many seconds of the running loop."""
        return asyncio.get_running_loop().call_later(seconds, callback)
