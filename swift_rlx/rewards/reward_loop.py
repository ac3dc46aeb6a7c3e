"""A thread with an event loop of its own: rewards run there, and a reward that blocks it blocks nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

Result = TypeVar("Result")


class RewardLoop:
    """Starts with the first coroutine. Thread-safe. The thread is a daemon: nothing waits for a reward at the end."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run it there; cancelling the future cancels it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run, args=(self._loop,), name="rewards", daemon=True).start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Its result, awaited in another loop."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def clear(self, last: Coroutine[Any, Any, None], wait_s: float) -> None:
        """Cancel what runs, then run `last`; waits so long. The loop goes on: what was made in it may be used again."""
        if self._loop is None:
            last.close()
            return
        try:
            self.submit(_clear(last)).result(wait_s)
        except (TimeoutError, FutureTimeout):  # a reward blocks the loop, and is left behind with it
            self._loop = None


async def _clear(last: Coroutine[Any, Any, None]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await last


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
