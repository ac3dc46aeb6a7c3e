"""A daemon thread with an asyncio loop of its own, in which other threads have things done."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from swift_rlx.errors import SchedulingError

Result = TypeVar("Result")

LOOK_S = 0.25
"""How often a waiting caller looks whether the thread is still there."""


class LoopThread:
    """Runs `main(thread)`, which calls `thread.is_up()` when others may call and ends when `thread.stop` is set.

    An interpreter that dies without `end` is not held up. `failure`: what ended the thread, if anything went wrong.
    """

    def __init__(self, name: str, main: Callable[[LoopThread], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self.failure: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.main_task: asyncio.Task[None] | None = None
        self.is_ended = False
        """Whether `end` was called."""
        self._main = main
        self._stop: asyncio.Event | None = None
        self._up: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def has_started(self) -> bool:
        """Whether `start` was called."""
        return self._thread.ident is not None

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def stop(self) -> asyncio.Event:
        """Set in the loop when `main` has to end."""
        assert self._stop is not None, "main runs in the loop that has it"
        return self._stop

    def start(self) -> None:
        """Start the thread; returns when it is up. Raises what ends it before."""
        if self.has_started or self.is_ended:
            raise SchedulingError(f"the {self.name} thread was started before; make a new one")
        self._thread.start()
        self._wait(self._up)

    def is_up(self) -> None:
        """Called by `main` in the thread: others may call."""
        self._up.set_result(None)

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """The result of a coroutine in the loop; what it raises is raised here, with its traceback.

        A caller that is interrupted, as by Ctrl-C, has it cancelled.
        """
        if self.loop is None or self.is_ended:
            coroutine.close()
            what = f"the {self.name} thread is closed" if self.is_ended else "call start first"
            raise SchedulingError(what)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise self._gone() from self.failure
        try:
            return self._wait(future)
        finally:
            future.cancel()  # without effect on one that is done

    def end(self, limit_s: float) -> bool:
        """Have `main` end and join the thread; whether it ended in time. A second call does nothing."""
        if not self.is_ended:
            self.is_ended = True
            if self.loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the thread is at its end
                    self.loop.call_soon_threadsafe(self._begin_to_end)
            if self.has_started:
                self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._prepare())
        except BaseException as error:  # noqa: BLE001 (the border of the thread: it is raised in the caller's)
            self.failure = error
        if not self._up.done():
            self._up.set_exception(self.failure or self._gone())

    async def _prepare(self) -> None:
        self._stop = asyncio.Event()
        self.main_task = asyncio.current_task()
        self.loop = asyncio.get_running_loop()
        if not self.is_ended:
            await self._main(self)

    def _begin_to_end(self) -> None:
        self.stop.set()
        if not self._up.done() and self.main_task is not None:
            self.main_task.cancel()

    def _wait(self, future: concurrent.futures.Future[Result]) -> Result:
        # `future.result(timeout)` would not tell its own timeout from a `TimeoutError` of the coroutine.
        try:
            while not future.done():
                concurrent.futures.wait([future], LOOK_S)
                if not self.is_alive and not future.done():
                    raise self._gone() from self.failure
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._gone() from self.failure

    def _gone(self) -> SchedulingError:
        return SchedulingError(f"the {self.name} thread has ended: {self.failure or 'it was closed'}")


async def ends_within(task: asyncio.Future[Any], timeout_s: float | None) -> bool:
    """Whether a task ends in time; it is cancelled where not. A result that it has at that moment counts."""
    await asyncio.wait([task], timeout=timeout_s)
    if task.done():
        return True
    task.cancel()
    await asyncio.wait([task])
    return not task.cancelled()
