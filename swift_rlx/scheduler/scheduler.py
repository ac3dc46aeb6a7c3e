"""The one public class: builds the parts, supervises the loops, ends them in order.

    async with RolloutScheduler(config, backends, prompts, score) as scheduler:
        while (batch := await scheduler.next_batch()) is not None:
            weights = train(batch)
            scheduler.publish(weights)

Always holds: every admitted prompt ends exactly once (trained, dropped for a counted reason, or carried over when the
run ends before it), every generated token has one fate, and no token older than `max_staleness` is trained. The first
two are checked when the run ends, the third at every pick-up. The trainer ends the run; the first error
of any other part is raised by what the trainer waits for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import TracebackType

from swift_rlx.backends.base import Backend, WeightUpdate, resolve_weight_update
from swift_rlx.clock import Clock, LoopClock
from swift_rlx.errors import BackendTimeout, ConfigError, SchedulingError
from swift_rlx.scheduler.capacity import Capacity
from swift_rlx.scheduler.closing import close_run
from swift_rlx.scheduler.config import RolloutConfig
from swift_rlx.scheduler.drafts import DraftBook
from swift_rlx.scheduler.ending import OnEnd
from swift_rlx.scheduler.generation import Generation
from swift_rlx.scheduler.groups import GroupBook, GroupState
from swift_rlx.scheduler.journal_entries import EntrySink
from swift_rlx.scheduler.ledger import TokenLedger
from swift_rlx.scheduler.loops import generate_loop, publish_loop, score_loop
from swift_rlx.scheduler.pickup import PickUp
from swift_rlx.scheduler.prompts import PromptSource
from swift_rlx.scheduler.publishing import Publisher
from swift_rlx.scheduler.ready import ReadyBuffer
from swift_rlx.scheduler.recovery import Recovery
from swift_rlx.scheduler.resume import PromptOf, RolloutState, capture, restore
from swift_rlx.scheduler.routing import Router, make_workers
from swift_rlx.scheduler.scoring import Scoring
from swift_rlx.scheduler.state import Events, RunState, Scorer
from swift_rlx.scheduler.statistics import Statistics, statistics_of
from swift_rlx.scheduler.tasks import Supervisor
from swift_rlx.scheduler.wait_filler import WaitFiller
from swift_rlx.types import PolicyVersion, Prompt, TrainBatch, TrajectoryGroup


class RolloutScheduler:
    """Turns prompts into scored groups of completions under a strict staleness bound.

    `version`: of the weights that the backends serve at the start, and `payload` those weights, for a worker that
    has to be started again before anything is published. `on_end`: told of each group that ends.
    `state`: the snapshot of an earlier start, with `prompt_of` (index, epoch) for the prompts in it; `prompts` then
    goes on behind the first `state.admitted`. `journal`: told of what happens, so that it can be added to a snapshot.
    Raises `ConfigError` for backends that do not fit together, and `CheckpointError` for a state that does not fit.
    To be used from one asyncio loop.
    """

    def __init__(
        self,
        config: RolloutConfig,
        backends: Sequence[Backend],
        prompts: PromptSource,
        score: Scorer,
        *,
        clock: Clock | None = None,
        version: PolicyVersion | None = None,
        payload: object = None,
        on_end: OnEnd = lambda end: None,
        state: RolloutState | None = None,
        prompt_of: PromptOf | None = None,
        journal: EntrySink | None = None,
    ) -> None:
        _check_names([backend.name for backend in backends])
        self.weight_update: WeightUpdate = resolve_weight_update(config.weight_update, backends)
        if version is None:
            version = PolicyVersion() if state is None else state.next_version
        if state is not None:
            state.check(version, config)
        events, clock = Events(), clock or LoopClock()
        self._state = RunState(
            config=config,
            clock=clock,
            source=prompts,
            router=Router(make_workers(config, backends, version, clock)),
            capacity=Capacity(config, version.step, state.capacity if state else None),
            supervisor=Supervisor(events.wake_waiters),
            events=events,
            version=version,
            live=version,
            payload=payload,
            live_payload=payload,
            on_end=on_end,
            book=GroupBook(config.group_size, config.min_members),
            ready=ReadyBuffer(config),
            ledger=TokenLedger(state.tokens if state else None),
            journal=journal,
        )
        self._resumed, self._prompt_of = state, prompt_of
        recovery = self._recovery = Recovery(self._state)
        drafts = DraftBook(self._state, self.weight_update)
        self._generation = Generation(self._state, recovery, drafts, random.Random(config.seed))
        self._publisher = Publisher(
            self.weight_update,
            self._state.router,
            self._generation.cut,
            recovery.publish_failed,
            config.publish_limit_s,
        )
        self._generation.publisher = self._publisher
        self._scoring = Scoring(self._state, score)
        self._pickup = PickUp(self._state, self._generation)
        self._has_trained = False

    async def __aenter__(self) -> RolloutScheduler:
        state = self._state
        if self._resumed is not None:
            restore(self._resumed, state, self._prompt_of, self._generation.admit_at)
            self._resumed = None  # its answers go as they are trained
        await self._recovery.begin()
        state.source.on_change(self._source_changed)
        state.supervisor.loop("generate", generate_loop(state, self._generation))
        state.supervisor.loop("score", score_loop(state, self._scoring))
        state.supervisor.loop("publish", publish_loop(state, self._publisher))
        state.events.generate.set()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
        if error is None:
            self.check()

    async def next_batch(self, filler: WaitFiller | None = None) -> TrainBatch | None:
        """The groups to train on at the trainer's current step, or None when all prompts have ended.

        With a `filler` it may be a batch without groups, where none is ready: the trainer then adds the gradient of
        stored groups to that of the step and asks again; it is none of the step's pick-ups (`wait_filler.py`).

        Raises the error of whatever part of the pipeline failed, and `BackendTimeout` where the first batch
        takes longer than `warm_up_limit_s`.
        """
        state, begin, waited = self._state, self._state.clock.now(), False
        limit = (
            None if self._has_trained else state.clock.call_later(state.config.warm_up_limit_s, self._cold)
        )
        if filler is not None:
            filler.asked()
        try:
            while True:
                self._raise_failure()
                state.events.train.clear()
                batch = self._pickup.try_pick(state.clock.now() - begin, waited, filler)
                if batch is not None and not batch.groups:
                    return batch
                if batch is not None or self._pickup.is_finished:
                    self._has_trained = True
                    if filler is not None:
                        filler.came()
                    return batch
                waited = True
                await state.events.train.wait()
        finally:
            if limit is not None:
                limit.cancel()

    def foreseen(self) -> list[TrajectoryGroup]:
        """The groups that the next batch will most likely have; none while too few are ready."""
        return self._pickup.foreseen()

    def publish(self, payload: object, steps: int = 1) -> PolicyVersion:
        """The trainer has made `steps` optimizer steps since the last call; offer its weights.

        Weights may be published in the middle of a generation batch. Returns their version at once. The payload
        must stay as it is while its version is among the `needed_versions`.
        """
        state = self._state
        if steps < 1:
            raise SchedulingError(f"weights after {steps} optimizer steps cannot be published")
        state.version = PolicyVersion(state.version.incarnation, state.version.step + steps)
        state.payload = payload
        state.events.publish.set()
        return state.version

    def allow_batch(self) -> None:
        """The trainer picks up one batch more than `RolloutConfig.fresh_batches` says of its current step."""
        self._state.capacity.allow(self._state.version.step)
        self._state.events.generate.set()

    async def published(self, version: PolicyVersion) -> None:
        """Return when every worker that is not out serves `version` or a later one. Raises what failed.

        A worker that is out gets the newest weights before it is given requests again.
        """
        while self._state.live < version:
            self._raise_failure()
            self._state.events.live.clear()
            await self._state.events.live.wait()

    async def close(self) -> None:
        """End the run: loops, then requests (with the tokens that they have), then scoring, then the backends."""
        await close_run(self._state, self._generation)

    def check(self) -> None:
        """Raise `SchedulingError` unless every prompt and every token is accounted for."""
        self._state.book.check(self._state.capacity.admitted)
        self._state.ledger.check(self._state.book.held_tokens)

    @property
    def version(self) -> PolicyVersion:
        """Of the trainer's weights."""
        return self._state.version

    @property
    def live(self) -> PolicyVersion:
        """Of the workers."""
        return self._state.live

    @property
    def needed_versions(self) -> frozenset[PolicyVersion]:
        """Versions whose payloads have to stay as they are; what came between them is left out."""
        return self._state.needed_versions

    def refresh(self) -> int:
        """Have ready groups with a token older than the trainer's weights generated again; returns how many."""
        return self._pickup.refresh()

    @property
    def ledger(self) -> TokenLedger:
        """Every generated token by fate."""
        return self._state.ledger

    def unfinished_prompts(self) -> list[Prompt]:
        """Prompts that were admitted and have not ended, in the order of their admission."""
        return [group.prompt for group in self._state.book]

    def statistics(self) -> Statistics:
        """The counters now."""
        return statistics_of(self._state, self._generation.waiting)

    def snapshot(self) -> RolloutState:
        """What a checkpoint of the trainer's weights of now has to keep (`resume.py`)."""
        journal = self._state.journal
        return capture(self._state, "" if journal is None else journal.cut())

    def _source_changed(self) -> None:
        self._state.events.generate.set()
        self._state.events.train.set()

    def _raise_failure(self) -> None:
        if self._state.supervisor.failure is not None:
            raise self._state.supervisor.failure
        if self._state.is_closing:
            raise SchedulingError("the scheduler is closed")

    def _cold(self) -> None:
        state, stats = self._state, self.statistics()
        scoring = sum(group.state is GroupState.SCORING for group in state.book)
        self._state.supervisor.fail(
            BackendTimeout(
                f"no first batch within {state.config.warm_up_limit_s:g} s: of {state.config.batch_groups} groups"
                f" {stats.ready} are ready and {scoring} wait for their score; {stats.inflight} requests are in"
                f" flight and {stats.waiting_requests} without a slot; failed attempts: {stats.failures or 'none'}"
                f"{''.join(f'; {said}' for said in (state.last_failure, state.drops.last) if said)}"
            )
        )


def _check_names(names: list[str]) -> None:
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"backends {names} are refused: at least one, each with its own name, is needed")
