"""Virtual time for asyncio: a loop whose clock jumps to the next timer when nothing else can run.

The order of everything is a function of the code alone, a simulated hour takes as long as its callbacks, and
a deadlock is an error instead of a hang. `LoopClock` on such a loop is the virtual clock.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Deadlock(AssertionError):
    """Every task waits, and no timer is left that could wake one."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time. Threads, sockets and processes do not belong on it."""

    _clock_resolution: float

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Let time pass; called by the selector, which knows how long nothing will happen."""
        self._now += seconds
        # asyncio runs what is due within the clock's resolution, which after weeks is less than the time's own.
        self._clock_resolution = max(self._clock_resolution, 2 * math.ulp(self._now))


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: asyncio asks it to sleep until the next timer, and it moves the clock there."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            waiting = sorted(task.get_name() for task in asyncio.all_tasks(self._loop))
            raise Deadlock(f"all tasks wait for each other: {', '.join(waiting)}")
        if timeout > 0:
            self._loop.jump(timeout)
        return []


def run_virtual(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` in virtual time and return its result, as `asyncio.run` would in real time.

    Raises `Deadlock` when nothing can ever run again.
    """
    loop = VirtualTimeLoop()
    task = loop.create_task(main, name="main")
    try:
        return loop.run_until_complete(task)
    finally:
        _cancel_rest(loop)
        loop.close()


def _cancel_rest(loop: VirtualTimeLoop) -> None:
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
