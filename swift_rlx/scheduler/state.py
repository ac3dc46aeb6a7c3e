"""What the stages share: the books of a run, and the events by which they wake each other.

Everything here is used from one asyncio loop; each book is changed by its own methods only. Nobody polls: who
changes something that another stage waits for sets that stage's event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from swift_rlx.clock import Clock
from swift_rlx.errors import BackendError, StalenessError
from swift_rlx.scheduler.capacity import Capacity
from swift_rlx.scheduler.config import RolloutConfig
from swift_rlx.scheduler.drops import LEAST_IN_A_ROW, DropWatch
from swift_rlx.scheduler.ending import GroupEnd, GroupOutcome, OnEnd, fate_of_dropped
from swift_rlx.scheduler.groups import GroupBook, OpenGroup
from swift_rlx.scheduler.journal_entries import Admitted, Dropped, Entry, EntrySink, PickedUp
from swift_rlx.scheduler.ledger import TokenLedger
from swift_rlx.scheduler.outage import Stopwatch
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

logger = logging.getLogger("swift_rlx")

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
    in_use: Counter[PolicyVersion] = field(default_factory=Counter)
    """How often each version is being taken by workers."""
    ledger: TokenLedger = field(default_factory=TokenLedger)
    to_score: deque[OpenGroup] = field(default_factory=deque)
    staleness: Counter[int] = field(default_factory=Counter)
    """Trained tokens by staleness."""
    retries: int = 0
    repeated_tokens: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Failed attempts by kind of error."""
    last_failure: str = ""
    """What the newest failed attempt said."""
    replay: deque[PickedUp] = field(default_factory=deque)
    """Batches of an earlier start that the trainer takes again, before any other."""
    journal: EntrySink | None = None
    is_closing: bool = False
    away: Stopwatch = field(init=False)
    """Runs while no worker gets requests."""
    drops: DropWatch = field(init=False)
    _told: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.away = Stopwatch(self.clock)
        self.drops = DropWatch(max(LEAST_IN_A_ROW, self.config.places), self.supervisor.fail)

    def attempt_failed(self, error: BackendError) -> None:
        """Count a failed attempt; the first one of its kind in this start of the run is told."""
        kind, self.last_failure = type(error).__name__, str(error)
        self.failures[kind] += 1
        if kind not in self._told:
            self._told.add(kind)
            logger.warning(
                "a request failed (later ones of its kind are counted, not told): %s: %s", kind, error
            )

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
        """A group ends without training; its tokens are settled and its place is given to another prompt."""
        tokens = group.num_tokens
        self.ledger.settle(fate_of_dropped(reason), tokens)
        self.book.drop(group, reason)
        self.note(Dropped(group.order, reason, tokens, dict(group.lost)))
        self.capacity.drop()
        self.drops.dropped(group, record, reason)
        self.on_end(GroupEnd(record, GroupOutcome.DROPPED, reason, detail))
        self.events.generate.set()
        self.events.train.set()

    def lose(self, group: OpenGroup, fate: Fate, tokens: int) -> None:
        """Tokens that were made for a group are in none of its answers."""
        self.ledger.settle(fate, tokens)
        self.book.lost(group, fate, tokens)

    def tokens_are_made_again(self, group: OpenGroup, tokens: int) -> None:
        """Tokens of an attempt are lost, and the next one makes them again."""
        self.lose(group, Fate.FAILED, tokens)
        self.repeated_tokens += tokens

    @contextmanager
    def using(self, version: PolicyVersion) -> Iterator[None]:
        """While workers take these weights."""
        self.in_use[version] += 1
        try:
            yield
        finally:
            self.in_use -= Counter([version])  # drops what nobody uses

    @property
    def needed_versions(self) -> frozenset[PolicyVersion]:
        """Versions whose weights have to stay: being taken, live, and the newest."""
        return frozenset(self.in_use.keys() | {self.live, self.version})

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
