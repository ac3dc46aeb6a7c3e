"""Supervision: no task ends unseen. The first error of any task, and a loop that just returns, end the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from swift_rlx.errors import SchedulingError


class Supervisor:
    """Starts tasks and keeps the first thing that went wrong with one. `on_failure` is called at that moment."""

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self.failure: BaseException | None = None
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def loop(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a loop, which must not end by itself."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._loops.add(task)
        task.add_done_callback(self._loop_ended)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that ends."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def fail(self, error: BaseException) -> None:
        """End the run with this error, unless another one came first."""
        if self.failure is None:
            self.failure = error
            self._on_failure()

    async def stop_loops(self) -> None:
        """Cancel the loops and wait for their end."""
        self._is_closing = True
        await _cancel(self._loops)

    async def stop_tasks(self) -> None:
        """Cancel everything that was spawned and wait for its end."""
        self._is_closing = True
        while self._tasks:  # what is cancelled may have spawned
            tasks = set(self._tasks)
            await _cancel(tasks)
            self._tasks -= tasks

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def _loop_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            if not self._is_closing:
                self.fail(SchedulingError(f"the {task.get_name()} loop was cancelled from outside"))
        elif (error := task.exception()) is not None:
            self.fail(error)
        else:
            self.fail(SchedulingError(f"the {task.get_name()} loop ended before the run did"))


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
