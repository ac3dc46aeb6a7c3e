"""What the stages share: the books of a run, and the events by which they wake each other.

Everything here is used from one asyncio loop; each book is changed by its own methods only. Nobody polls: who
changes something that another stage waits for sets that stage's event.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from swift_rlx.clock import Clock
from swift_rlx.errors import BackendUnavailable, RewardError, StalenessError
from swift_rlx.scheduler.capacity import Capacity
from swift_rlx.scheduler.config import RolloutConfig
from swift_rlx.scheduler.ending import GroupEnd, GroupOutcome, OnEnd
from swift_rlx.scheduler.groups import GroupBook, OpenGroup
from swift_rlx.scheduler.journal_entries import Admitted, Dropped, Entry, EntrySink, PickedUp
from swift_rlx.scheduler.ledger import TokenLedger
from swift_rlx.scheduler.prompts import PromptSource
from swift_rlx.scheduler.ready import ReadyBuffer
from swift_rlx.scheduler.routing import Router
from swift_rlx.scheduler.tasks import Supervisor
from swift_rlx.types import (
    Completion,
    DropReason,
    Fate,
    IntArray,
    PolicyVersion,
    Prompt,
    Score,
    TrajectoryGroup,
)

MIN_DROPS_TO_END = 32
"""Groups that are dropped in a row before the run ends; twice what may be admitted, where that is more."""

Scorer = Callable[[Prompt, Sequence[Completion]], Awaitable[Sequence[Score]]]
"""Scores the completions of one group, one score each, in their order."""


@dataclass(slots=True, eq=False)
class Events:
    """Who waits for what."""

    generate: asyncio.Event = field(default_factory=asyncio.Event)
    """Room, a slot, a prompt or a request appeared."""
    score: asyncio.Event = field(default_factory=asyncio.Event)
    """A group has its completions, or a place for scoring became free."""
    train: asyncio.Event = field(default_factory=asyncio.Event)
    """A group became ready or ended, or the run failed."""
    publish: asyncio.Event = field(default_factory=asyncio.Event)
    """The trainer offers weights."""
    live: asyncio.Event = field(default_factory=asyncio.Event)
    """Weights went live, or the run failed."""

    def wake_waiters(self) -> None:
        """Wake those who wait from outside the loops."""
        self.train.set()
        self.live.set()


@dataclass(slots=True, eq=False)
class RunState:
    """The books of a run. `version`: of the trainer; `live`: of the workers; `payload` and
    `live_payload`: their weights."""

    config: RolloutConfig
    clock: Clock
    source: PromptSource
    router: Router
    capacity: Capacity
    supervisor: Supervisor
    events: Events
    version: PolicyVersion
    live: PolicyVersion
    on_end: OnEnd
    book: GroupBook
    ready: ReadyBuffer
    payload: object = None
    live_payload: object = None
    ledger: TokenLedger = field(default_factory=TokenLedger)
    to_score: deque[OpenGroup] = field(default_factory=deque)
    staleness: Counter[int] = field(default_factory=Counter)
    """Trained tokens by staleness."""
    retries: int = 0
    repeated_tokens: int = 0
    drops_in_a_row: int = 0
    """Groups that were dropped for want of answers or rewards since one became ready."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failed attempts by kind of error."""
    replay: deque[PickedUp] = field(default_factory=deque)
    """Batches of an earlier start that the trainer takes again, before any other."""
    journal: EntrySink | None = None
    is_closing: bool = False

    def note(self, entry: Entry) -> None:
        """Tell the journal, if there is one."""
        if self.journal is not None:
            self.journal.add(entry)

    def admit(self, prompt: Prompt) -> OpenGroup:
        """Open a group for a prompt, in a place that there is room for."""
        group = self.book.admit(prompt, self.capacity.admit())
        self.note(Admitted(group.order, prompt.epoch, prompt.index))
        return group

    def drop(self, group: OpenGroup, record: TrajectoryGroup, reason: DropReason, detail: str = "") -> None:
        """A group ends without training; its tokens are settled and its place is given to another prompt.

        Where this has happened to very many in a row, something is wrong with all of them, and the run ends.
        """
        tokens = sum(one.num_sampled for one in group.completions.values())
        self.ledger.settle(Fate.FAILED, tokens)
        self.book.drop(group, reason)
        self.note(Dropped(group.order, reason, tokens))
        self.capacity.drop()
        self.on_end(GroupEnd(record, GroupOutcome.DROPPED, reason, detail))
        self.events.generate.set()
        self.events.train.set()
        self._count_drop(group, reason)

    def _count_drop(self, group: OpenGroup, reason: DropReason) -> None:
        if reason is DropReason.NO_SPREAD:
            return
        self.drops_in_a_row += 1
        if self.drops_in_a_row < max(MIN_DROPS_TO_END, 2 * self.config.places):
            return
        many = f"{self.drops_in_a_row} prompts in a row were dropped: "
        if reason is DropReason.TOO_FEW_ANSWERS:
            last = next(reversed(group.failed.values()), "none")
            self.supervisor.fail(
                BackendUnavailable(f"{many}too few of their answers came; the last error: {last}")
            )
        else:
            self.supervisor.fail(RewardError(f"{many}too few of their answers got a reward that is a number"))

    def tokens_are_made_again(self, tokens: int) -> None:
        """Tokens of an attempt are lost, and the next one makes them again."""
        self.ledger.settle(Fate.FAILED, tokens)
        self.repeated_tokens += tokens

    @property
    def has_admitted_all(self) -> bool:
        """Whether no prompt will be admitted any more, unless one is dropped."""
        return self.capacity.has_admitted_all or self.source.is_exhausted

    def check_versions(self, worker: str, steps: IntArray, served: PolicyVersion, incarnation: int) -> None:
        """Raise `StalenessError` where a worker did not use the weights that it acknowledged.

        `steps`: of the tokens that it made, maybe none; `served`: what it had acknowledged when the request was sent.
        """
        if not len(steps):
            return
        first, last = int(steps.min()), int(steps.max())
        newest = max(self.version, self.live).step
        if incarnation != served.incarnation or first < served.step or last > newest:
            raise StalenessError(
                f"worker '{worker}' answered with weights of steps {first} to {last} of incarnation {incarnation},"
                f" but it acknowledged {served}, and the newest step is {newest}"
            )
