"""Which worker gets a request: the one with the fewest tokens in flight among those that are open.

A worker that fails often and fast has always room; so it is not its load that keeps requests away from it but its
state: `FAILURES_TO_EJECT` failures without a success between them eject it. It comes back when it says that it is
well and serves the current weights, at the earliest after a time that doubles with every ejection; and until it has
answered a request, it gets one at a time, and the next failure ejects it again.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swift_rlx.backends.base import Backend
from swift_rlx.errors import SchedulingError
from swift_rlx.scheduler.inflight import InflightLimit, Mark
from swift_rlx.types import PolicyVersion

FAILURES_TO_EJECT = 3
FIRST_EJECTION_S = 1.0
MAX_EJECTION_S = 30.0


class WorkerState(enum.Enum):
    """Whether a worker gets requests."""

    OPEN = "open"
    PAUSED = "paused"
    """Weights are being published, and no answer may be in flight or begin."""
    EJECTED = "ejected"


@dataclass(slots=True, eq=False)
class Worker:
    """A backend with what is on it. Written by the router only."""

    backend: Backend
    max_inflight: int
    reserved_share: float
    version: PolicyVersion
    """Last version whose publishing it acknowledged."""
    pace: InflightLimit | None = None
    """What adapts `max_inflight`; None: it stays."""
    state: WorkerState = WorkerState.OPEN
    inflight: int = 0
    long_inflight: int = 0
    tokens: int = 0
    failures: int = 0
    """Since the last success."""
    ejections: int = 0
    """Since the last success."""

    @property
    def name(self) -> str:
        return self.backend.name

    def has_room(self, is_long: bool) -> bool:
        """Whether a request fits; reserved slots that no long request uses stay free for one."""
        if self.state is not WorkerState.OPEN or (self.ejections and self.inflight):
            return False
        reserved = int(self.reserved_share * self.max_inflight)
        kept = 0 if is_long else max(reserved - self.long_inflight, 0)
        return self.inflight + kept < self.max_inflight


class Router:
    """Keeps the workers' books: reserve a slot, release it, eject, readmit."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.workers = tuple(workers)
        self.failovers = 0

    @property
    def inflight(self) -> int:
        """Requests on all workers."""
        return sum(worker.inflight for worker in self.workers)

    @property
    def is_none_well(self) -> bool:
        """Whether every worker is ejected, or has only failed since its last success."""
        return all(worker.state is WorkerState.EJECTED or worker.failures for worker in self.workers)

    def reserve(self, tokens: int, is_long: bool, avoid: Collection[str] = ()) -> Worker | None:
        """Take a slot for a request of about `tokens` tokens; None: no open worker has one.

        Workers in `avoid` are taken only when no other one is open.
        """
        candidates = [worker for worker in self.workers if worker.state is not WorkerState.EJECTED]
        others = [worker for worker in candidates if worker.name not in avoid]
        open_ones = [worker for worker in others or candidates if worker.has_room(is_long)]
        if not open_ones:
            return None
        worker = min(open_ones, key=lambda one: (one.tokens, one.inflight))
        worker.inflight += 1
        worker.long_inflight += is_long
        worker.tokens += tokens
        return worker

    def sent(self, worker: Worker) -> Mark | None:
        """What `measured` needs to know of the request whose slot was taken last; None: the limit is fixed."""
        return None if worker.pace is None else worker.pace.sent(worker.inflight)

    def release(self, worker: Worker, tokens: int, is_long: bool) -> None:
        """Give a slot back, with what was said when it was taken."""
        worker.inflight -= 1
        worker.long_inflight -= is_long
        worker.tokens -= tokens
        if worker.inflight < 0 or worker.long_inflight < 0 or worker.tokens < 0:
            raise SchedulingError(f"worker '{worker.name}' gave back a slot that was not taken")

    def succeeded(self, worker: Worker) -> None:
        """An answer came."""
        worker.failures = worker.ejections = 0

    def measured(self, worker: Worker, mark: Mark | None, tokens: int, seconds: float) -> None:
        """An answer of so many tokens took so long; `mark`: what `sent` gave."""
        if worker.pace is not None and mark is not None:
            worker.pace.answered(mark, tokens, seconds)
            worker.max_inflight = worker.pace.limit

    def failed(self, worker: Worker, is_dead: bool) -> bool:
        """A request failed by the worker's fault; returns whether this ejected it."""
        worker.failures += 1
        is_bad = is_dead or worker.ejections > 0 or worker.failures >= FAILURES_TO_EJECT
        if worker.state is WorkerState.EJECTED or not is_bad:
            return False
        self.eject(worker)
        return True

    def eject(self, worker: Worker) -> None:
        """Give the worker no more requests."""
        worker.state = WorkerState.EJECTED
        worker.ejections += 1
        self.failovers += 1

    def ejection_s(self, worker: Worker) -> float:
        """Seconds until it is asked whether it is well."""
        return float(min(FIRST_EJECTION_S * 2.0 ** (worker.ejections - 1), MAX_EJECTION_S))

    def readmit(self, worker: Worker) -> None:
        """It is well and serves the current weights."""
        worker.state = WorkerState.OPEN
        worker.failures = 0
