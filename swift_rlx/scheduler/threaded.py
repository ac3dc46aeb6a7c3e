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
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType

from swift_rlx.backends.base import Backend
from swift_rlx.errors import BackendTimeout, SchedulingError
from swift_rlx.scheduler.config import RolloutConfig
from swift_rlx.scheduler.ending import OnEnd
from swift_rlx.scheduler.journal_entries import EntrySink
from swift_rlx.scheduler.loop_thread import LoopThread, ends_within
from swift_rlx.scheduler.prompts import PromptFeed, PromptSource
from swift_rlx.scheduler.resume import PromptOf, RolloutState
from swift_rlx.scheduler.scheduler import RolloutScheduler
from swift_rlx.scheduler.state import Scorer
from swift_rlx.scheduler.statistics import Statistics
from swift_rlx.scheduler.wait_filler import WaitFiller
from swift_rlx.types import PolicyVersion, Prompt, TrainBatch, TrajectoryGroup

MakeBackends = Callable[[], Awaitable[Sequence[Backend]]]
"""Starts the workers, in the loop that will use them; closes those that it started where it raises."""

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
        journal: EntrySink | None = None,
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
        self._journal = journal
        self._prompts = prompts
        self._close_limit_s = close_limit_s or 3 * config.abort_grace_s + 5
        self._thread = LoopThread("rollout", self._main)
        self._scheduler: RolloutScheduler | None = None
        self._picking: asyncio.Task[TrainBatch | None] | None = None

    def start(self) -> None:
        """Start the thread and the backends; returns when they serve. Raises what hinders them."""
        is_first = not self._thread.has_started
        try:
            self._thread.start()
        except BaseException:
            if is_first:
                self.close()
            raise

    def put(self, prompts: Iterable[Prompt]) -> None:
        """Add prompts behind those that wait; allowed before `start`."""
        self._feed_call(self._feed().put, list(prompts))

    def end_of_prompts(self) -> None:
        """No prompt will be put any more."""
        self._feed_call(self._feed().close)

    def next_batch(
        self, timeout_s: float | None = None, filler: WaitFiller | None = None
    ) -> TrainBatch | None:
        """As `RolloutScheduler.next_batch`. Raises `BackendTimeout` after `timeout_s`; no batch is lost by it."""
        try:
            batch = self._thread.call(self._next_batch(timeout_s, filler))
        except Exception:
            self._picking = None
            raise
        # Only now: what an interrupted caller waited for goes to the next call.
        self._picking = None
        return batch

    def publish(self, payload: object, steps: int = 1) -> PolicyVersion:
        """As `RolloutScheduler.publish`: offers weights, does not wait until they are live."""

        async def publish() -> PolicyVersion:
            return self._running().publish(payload, steps)

        return self._thread.call(publish())

    def allow_batch(self) -> None:
        """As `RolloutScheduler.allow_batch`."""

        async def allow() -> None:
            self._running().allow_batch()

        self._thread.call(allow())

    def wait_published(self, version: PolicyVersion, timeout_s: float | None = None) -> None:
        """Return when `version` or a later one is live on the workers. Raises `BackendTimeout` after `timeout_s`."""

        async def published() -> None:
            task = asyncio.ensure_future(self._running().published(version))
            if not await ends_within(task, timeout_s):
                raise BackendTimeout(f"weights {version} are not live after {timeout_s:g} s")
            task.result()

        self._thread.call(published())

    @property
    def live(self) -> PolicyVersion:
        """As `RolloutScheduler.live`."""
        return self._running().live

    def needed_versions(self) -> frozenset[PolicyVersion]:
        """As `RolloutScheduler.needed_versions`."""

        async def needed() -> frozenset[PolicyVersion]:
            return self._running().needed_versions

        return self._thread.call(needed())

    def refresh(self) -> int:
        """As `RolloutScheduler.refresh`."""

        async def refresh() -> int:
            return self._running().refresh()

        return self._thread.call(refresh())

    def foreseen(self) -> list[TrajectoryGroup]:
        """As `RolloutScheduler.foreseen`."""

        async def foreseen() -> list[TrajectoryGroup]:
            return self._running().foreseen()

        return self._thread.call(foreseen())

    def statistics(self) -> Statistics:
        """The counters now, or those of the end."""
        if self._thread.is_ended:
            return self._running().statistics()

        async def statistics() -> Statistics:
            return self._running().statistics()

        return self._thread.call(statistics())

    def snapshot(self) -> RolloutState:
        """As `RolloutScheduler.snapshot`, between an optimizer step and the next pick-up."""

        async def snapshot() -> RolloutState:
            return self._running().snapshot()

        return self._thread.call(snapshot())

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that the backends belong to; None before `start`."""
        return self._thread.loop

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread, or went wrong at its end: also a law of the scheduler that was found broken then."""
        return self._thread.failure

    @property
    def scheduler(self) -> RolloutScheduler:
        """The scheduler itself, to be touched in its loop, or after `close`."""
        return self._running()

    def close(self) -> None:
        """End the run as `RolloutScheduler.close` does and join the thread; a second call does nothing.

        Returns after `close_limit_s` at the latest: a thread that is stuck by then is left behind, with a warning. What
        goes wrong at the end is told, and kept in `failure`.
        """
        is_first = not self._thread.is_ended
        if not self._thread.end(self._close_limit_s):
            logger.warning(
                "the rollout thread did not end within %g s and is left behind", self._close_limit_s
            )
        elif is_first and self._scheduler is not None and self.failure is not None:
            logger.error("the rollout thread ended with an error: %s", self.failure)

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
        if error is None and self._thread.failure is not None:
            raise self._thread.failure

    async def _main(self, thread: LoopThread) -> None:
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
                journal=self._journal,
            )
            async with scheduler:
                self._scheduler, self._state = scheduler, None
                thread.is_up()
                await thread.stop.wait()
        finally:
            closing = asyncio.gather(*(one.close() for one in backends), return_exceptions=True)
            await asyncio.wait([closing], timeout=self._config.abort_grace_s)

    async def _next_batch(self, timeout_s: float | None, filler: WaitFiller | None) -> TrainBatch | None:
        scheduler = self._running()
        if self._picking is None:
            self._picking = asyncio.ensure_future(scheduler.next_batch(filler))
        picking = self._picking
        if not await ends_within(picking, timeout_s):
            stats, groups = scheduler.statistics(), self._config.batch_groups
            raise BackendTimeout(
                f"no batch within {timeout_s:g} s: of {groups} groups {stats.ready} are ready;"
                f" {stats.inflight} requests are in flight"
            )
        return picking.result()

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
        if not self._thread.has_started:
            function(*arguments)
            return

        async def call() -> None:
            function(*arguments)

        self._thread.call(call())
