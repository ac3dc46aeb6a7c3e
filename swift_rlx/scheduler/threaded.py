"""The scheduler for a synchronous trainer: in a thread of its own, with an asyncio loop of its own.

    with RolloutThread(config, make_backends, prompts, score) as rollout:
        while (batch := rollout.next_batch()) is not None:
            rollout.publish(train(batch))

Every method may be called from any thread; what it does happens in the loop. Callbacks (`score`, `on_end`) run in the
loop too and must not block it. A wait of the trainer ends with a result, with the pipeline's own error, with a
timeout that the trainer chose, or with Ctrl-C; it also ends when the thread itself is gone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from swift_rlx.backends.base import Backend
from swift_rlx.errors import BackendTimeout, SchedulingError
from swift_rlx.scheduler.config import RolloutConfig
from swift_rlx.scheduler.ending import OnEnd
from swift_rlx.scheduler.prompts import PromptFeed, PromptSource
from swift_rlx.scheduler.resume import PromptOf, RolloutState
from swift_rlx.scheduler.scheduler import RolloutScheduler
from swift_rlx.scheduler.state import Scorer
from swift_rlx.scheduler.statistics import Statistics
from swift_rlx.types import PolicyVersion, Prompt, TrainBatch

Result = TypeVar("Result")
MakeBackends = Callable[[], Awaitable[Sequence[Backend]]]
"""Starts the workers, in the loop that will use them; closes those that it started where it raises."""

LOOK_S = 0.25
"""How often a waiting caller looks whether the thread is still there."""

logger = logging.getLogger(__name__)


class RolloutThread:
    """Runs a `RolloutScheduler`; its arguments are the scheduler's, but backends come from `make_backends`.

    `prompts`: asked in the loop. `put` and `end_of_prompts` need a `PromptFeed`. `close_limit_s`: how long `close`
    waits for the thread at most; default: three times `abort_grace_s` plus 5.
    The thread is a daemon: an interpreter that dies without `close` is not held up.
    """

    def __init__(
        self,
        config: RolloutConfig,
        make_backends: MakeBackends,
        prompts: PromptSource,
        score: Scorer,
        *,
        version: PolicyVersion | None = None,
        payload: object = None,
        on_end: OnEnd = lambda end: None,
        state: RolloutState | None = None,
        prompt_of: PromptOf | None = None,
        close_limit_s: float | None = None,
    ) -> None:
        self._config = config
        self._make_backends = make_backends
        self._score = score
        self._version = version
        self._payload = payload
        self._on_end = on_end
        self._state = state
        self._prompt_of = prompt_of
        self._prompts = prompts
        self._close_limit_s = close_limit_s or 3 * config.abort_grace_s + 5
        self._thread = threading.Thread(target=self._run, name="rollout", daemon=True)
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._main_task: asyncio.Task[None] | None = None
        self._scheduler: RolloutScheduler | None = None
        self._picking: asyncio.Task[TrainBatch | None] | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start the thread and the backends; returns when they serve. Raises what hinders them."""
        if self._is_closed or self._thread.ident is not None:
            raise SchedulingError("the rollout thread was started before; make a new one")
        self._thread.start()
        try:
            self._wait(self._started)
        except BaseException:
            self.close()
            raise

    def put(self, prompts: Iterable[Prompt]) -> None:
        """Add prompts behind those that wait; allowed before `start`."""
        self._feed_call(self._feed().put, list(prompts))

    def end_of_prompts(self) -> None:
        """No prompt will be put any more."""
        self._feed_call(self._feed().close)

    def next_batch(self, timeout_s: float | None = None) -> TrainBatch | None:
        """As `RolloutScheduler.next_batch`. Raises `BackendTimeout` after `timeout_s`; no batch is lost by it."""
        try:
            batch = self._call(self._next_batch(timeout_s))
        except Exception:
            self._picking = None
            raise
        self._picking = (
            None  # only now: what a caller waited for when it was interrupted goes to the next call
        )
        return batch

    def publish(self, payload: object, steps: int = 1) -> PolicyVersion:
        """As `RolloutScheduler.publish`: offers weights, does not wait until they are live."""

        async def publish() -> PolicyVersion:
            return self._running().publish(payload, steps)

        return self._call(publish())

    def wait_published(self, version: PolicyVersion, timeout_s: float | None = None) -> None:
        """Return when `version` or a later one is live on the workers. Raises `BackendTimeout` after `timeout_s`."""

        async def published() -> None:
            task = asyncio.ensure_future(self._running().published(version))
            if not await _ends_within(task, timeout_s):
                raise BackendTimeout(f"weights {version} are not live after {timeout_s:g} s")
            task.result()

        self._call(published())

    @property
    def live(self) -> PolicyVersion:
        """As `RolloutScheduler.live`."""
        return self._running().live

    def statistics(self) -> Statistics:
        """The counters now, or those of the end."""
        if self._is_closed:
            return self._running().statistics()

        async def statistics() -> Statistics:
            return self._running().statistics()

        return self._call(statistics())

    def snapshot(self) -> RolloutState:
        """As `RolloutScheduler.snapshot`, between an optimizer step and the next pick-up."""

        async def snapshot() -> RolloutState:
            return self._running().snapshot()

        return self._call(snapshot())

    @property
    def scheduler(self) -> RolloutScheduler:
        """The scheduler itself, to be touched in its loop, or after `close`."""
        return self._running()

    def close(self) -> None:
        """End the run as `RolloutScheduler.close` does and join the thread; a second call does nothing.

        Returns after `close_limit_s` at the latest: a thread that is stuck by then is left behind, with a warning.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread.ident is None:
            return
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the thread is at its end
                self._loop.call_soon_threadsafe(self._begin_to_end)
        self._thread.join(self._close_limit_s)
        if self._thread.is_alive():
            logger.warning(
                "the rollout thread did not end within %g s and is left behind", self._close_limit_s
            )

    def __enter__(self) -> RolloutThread:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if error is None and self._failure is not None:
            raise self._failure

    # In the thread.

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 (the border of the thread: it is raised in the caller's)
            self._failure = error
            if not self._started.done():
                self._started.set_exception(error)
        finally:
            if not self._started.done():
                self._started.set_exception(SchedulingError("the rollout thread ended before it had started"))

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._main_task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        if self._is_closed:
            return
        backends = await self._make_backends()
        try:
            scheduler = RolloutScheduler(
                self._config,
                backends,
                self._prompts,
                self._score,
                version=self._version,
                payload=self._payload,
                on_end=self._on_end,
                state=self._state,
                prompt_of=self._prompt_of,
            )
            async with scheduler:
                self._scheduler = scheduler
                self._started.set_result(None)
                await self._stop.wait()
        finally:
            closing = asyncio.gather(*(one.close() for one in backends), return_exceptions=True)
            await asyncio.wait([closing], timeout=self._config.abort_grace_s)

    def _begin_to_end(self) -> None:
        if self._stop is None or self._main_task is None:
            return
        self._stop.set()
        if not self._started.done():
            self._main_task.cancel()

    async def _next_batch(self, timeout_s: float | None) -> TrainBatch | None:
        scheduler = self._running()
        if self._picking is None:
            self._picking = asyncio.ensure_future(scheduler.next_batch())
        picking = self._picking
        if not await _ends_within(picking, timeout_s):
            stats, groups = scheduler.statistics(), self._config.batch_groups
            raise BackendTimeout(
                f"no batch within {timeout_s:g} s: of {groups} groups {stats.ready} are ready;"
                f" {stats.inflight} requests are in flight"
            )
        return picking.result()

    # In the caller's thread.

    def _running(self) -> RolloutScheduler:
        if self._scheduler is None:
            raise SchedulingError("the rollout thread has not started; call start first")
        return self._scheduler

    def _feed(self) -> PromptFeed:
        if not isinstance(self._prompts, PromptFeed):
            raise SchedulingError(
                f"prompts cannot be put into a {type(self._prompts).__name__}; use a PromptFeed"
            )
        return self._prompts

    def _feed_call(self, function: Callable[..., None], *arguments: object) -> None:
        if self._thread.ident is None:
            function(*arguments)
            return

        async def call() -> None:
            function(*arguments)

        self._call(call())

    def _call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """The result of a coroutine in the loop; what it raises is raised here, with its traceback."""
        if self._loop is None or self._is_closed:
            coroutine.close()
            raise SchedulingError("the rollout thread is closed" if self._is_closed else "call start first")
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise self._gone() from self._failure
        try:
            return self._wait(future)
        finally:
            future.cancel()  # without effect, unless the caller was interrupted and nobody waits for it any more

    def _wait(self, future: concurrent.futures.Future[Result]) -> Result:
        # `future.result(timeout)` would not tell its own timeout from a `TimeoutError` of the pipeline.
        try:
            while not future.done():
                concurrent.futures.wait([future], LOOK_S)
                if not self._thread.is_alive() and not future.done():
                    raise self._gone() from self._failure
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._gone() from self._failure

    def _gone(self) -> SchedulingError:
        return SchedulingError(f"the rollout thread has ended: {self._failure or 'it was closed'}")


async def _ends_within(task: asyncio.Future[Any], timeout_s: float | None) -> bool:
    """Whether a task ends in time; it is cancelled where not. A result that it has at that moment counts."""
    await asyncio.wait([task], timeout=timeout_s)
    if task.done():
        return True
    task.cancel()
    await asyncio.wait([task])
    return not task.cancelled()
