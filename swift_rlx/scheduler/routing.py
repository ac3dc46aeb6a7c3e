"""Which worker gets a request: the one with the fewest tokens in flight among those that are open.

A worker that fails often and fast has always room; so it is not its load that keeps requests away from it but its
state: `FAILURES_TO_EJECT` failures without an answer between them eject it, and its death at once. It comes back when
it says that it is well and serves the current weights, at the earliest after a time that grows threefold with every
ejection. To ask one that is not there or not well costs no request, so it is asked again at short intervals: one that
comes back is used within seconds. Until it has shown that it makes tokens it gets one request at a time, and until it
has given an answer the next failure ejects it again.

A request that was on several workers that died is a suspect (`blame.py`). It is sent where all others make tokens
already, or where there are no others, so that it is known who is to blame should that worker die too; nobody follows
until it has got further than before. The worker has to have shown itself well: a prompt that kills workers does not
keep a new one from its first answer. Where none has room, one is set aside, and gets no other requests meanwhile.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from swift_rlx.backends.base import Backend
from swift_rlx.clock import Clock
from swift_rlx.errors import SchedulingError
from swift_rlx.scheduler.config import RolloutConfig
from swift_rlx.scheduler.inflight import InflightLimit, Mark
from swift_rlx.scheduler.time_limits import Pulse
from swift_rlx.types import PolicyVersion

FAILURES_TO_EJECT = 3
FIRST_EJECTION_S = 3.0
EJECTION_GROWTH = 3.0
MAX_EJECTION_S = 30.0
ILL_AGAIN_S = 5.0
"""After how long one that was asked and is not well is asked again, at the latest."""
MAX_EJECTIONS = 10
"""More do not make it longer; a worker that is gone for hours is asked a thousand times."""


class WorkerState(enum.Enum):
    """Whether a worker gets requests."""

    OPEN = "open"
    PAUSED = "paused"
    """Weights are being published, and no answer may be in flight or begin."""
    EJECTED = "ejected"


@dataclass(frozen=True, slots=True)
class Load:
    """What a request puts on a worker. `tokens`: about as many as it will hold in flight, prompt included."""

    tokens: int
    is_long: bool = False
    is_suspect: bool = False
    is_alone: bool = False
    """A suspect that nobody may be beside."""


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
    pulse: Pulse | None = None
    """Its signs of life, where it tells of tokens as it makes them."""
    state: WorkerState = WorkerState.OPEN
    inflight: int = 0
    long_inflight: int = 0
    silent: int = 0
    """That have made no token yet."""
    suspects: int = 0
    """That have not got further than before; nobody is sent beside one."""
    is_set_aside: bool = False
    """For a suspect, as soon as it has room for it."""
    tokens: int = 0
    failures: int = 0
    """Since the last answer, or since it was readmitted."""
    ejections: int = 0
    """Since the last answer, with the times that it was asked whether it is well and was not."""
    ill: int = 0
    """These times."""
    is_starting: bool = False
    """It is out because it is being started, as it said when it was asked last."""
    is_on_probation: bool = False
    """It was readmitted and has made no token yet."""

    @property
    def name(self) -> str:
        return self.backend.name

    def has_room(self, load: Load) -> bool:
        """Whether a request fits; reserved slots that no long request uses stay free for one."""
        if self.state is not WorkerState.OPEN or (self.is_on_probation and self.inflight):
            return False
        if load.is_suspect:
            beside = self.inflight if load.is_alone else self.silent + self.suspects
            return not beside and self.inflight < self.max_inflight
        if self.suspects or self.is_set_aside:
            return False
        reserved = int(self.reserved_share * self.max_inflight)
        kept = 0 if load.is_long else max(reserved - self.long_inflight, 0)
        return self.inflight + kept < self.max_inflight


class Router:
    """Keeps the workers' books: reserve a slot, release it, eject, readmit."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.workers = tuple(workers)
        self.failovers = 0
        """How often a worker was taken out."""
        self.on_eject: Callable[[Worker], None] = lambda worker: None
        self.on_idle_change: Callable[[], None] = lambda: None
        """Called when a worker gets its first request or gives back its last one."""

    @property
    def inflight(self) -> int:
        """Requests on all workers."""
        return sum(worker.inflight for worker in self.workers)

    @property
    def slots(self) -> int:
        """Requests that all workers may have."""
        return sum(worker.max_inflight for worker in self.workers)

    @property
    def is_one_unproven(self) -> bool:
        """Whether a worker was readmitted and has made no token yet."""
        return any(worker.is_on_probation for worker in self.workers)

    @property
    def is_none_well(self) -> bool:
        """Whether every worker has failed since its last answer; to be readmitted does not make it well."""
        return all(worker.failures or worker.ejections for worker in self.workers)

    @property
    def is_none_hopeful(self) -> bool:
        """Whether every worker has failed again after it was taken out."""
        return all(worker.ejections > 1 for worker in self.workers)

    @property
    def is_one_coming(self) -> bool:
        """Whether a worker is being started, or is there without a request that it could fail at."""
        return any(
            worker.is_starting or (worker.state is not WorkerState.EJECTED and not worker.inflight)
            for worker in self.workers
        )

    def has_room(self, load: Load) -> bool:
        """Whether some worker has a slot for such a request."""
        return any(worker.has_room(load) for worker in self.workers)

    def reserve(self, load: Load, avoid: Collection[str] = (), *, proven: bool = False) -> Worker | None:
        """Take a slot for a request; None: no open worker has one for it.

        Workers in `avoid` are taken only when all others are ejected. `proven`: none on probation is taken.
        """
        open_ones = [
            worker
            for worker in self._candidates(avoid)
            if worker.has_room(load) and not (proven and worker.is_on_probation)
        ]
        if not open_ones:
            return None
        worker = min(open_ones, key=_busyness)
        worker.inflight += 1
        worker.silent += 1
        worker.long_inflight += load.is_long
        worker.suspects += load.is_suspect
        worker.tokens += load.tokens
        if worker.inflight == 1:
            self.on_idle_change()
        return worker

    def set_aside(self, avoid: Collection[str]) -> None:
        """Keep one worker for a suspect that waits and avoids these; none while another one is tried."""
        previous = [worker for worker in self.workers if worker.is_set_aside]
        self.set_none_aside()
        if any(worker.suspects for worker in self.workers):
            return
        candidates = [worker for worker in self._candidates(avoid) if not worker.is_on_probation]
        if candidates:
            worker = min(candidates, key=lambda one: (one not in previous, *_busyness(one)))
            worker.is_set_aside = True

    def set_none_aside(self) -> None:
        """No suspect waits."""
        for worker in self.workers:
            worker.is_set_aside = False

    def cleared(self, worker: Worker) -> None:
        """A suspect got further than before; its slot is not that of one any more."""
        worker.suspects -= 1

    def sent(self, worker: Worker) -> Mark | None:
        """What `measured` needs to know of the request whose slot was taken last; None: the limit is fixed."""
        return None if worker.pace is None else worker.pace.sent(worker.inflight)

    def release(self, worker: Worker, load: Load, *, is_silent: bool = True) -> None:
        """Give a slot back, with what was said when it was taken; `is_silent`: `told` was not called for it."""
        worker.inflight -= 1
        worker.silent -= is_silent
        worker.long_inflight -= load.is_long
        worker.suspects -= load.is_suspect
        worker.tokens -= load.tokens
        counts = worker.inflight, worker.silent, worker.long_inflight, worker.suspects, worker.tokens
        if min(counts) < 0:
            raise SchedulingError(f"worker '{worker.name}' gave back a slot that was not taken")
        if not worker.inflight:
            self.on_idle_change()

    def told(self, worker: Worker, *, is_first: bool = False) -> bool:
        """It made tokens, `is_first`: the first ones of a request; returns whether it has room that it had not."""
        worker.silent -= is_first
        was_on_probation, worker.is_on_probation = worker.is_on_probation, False
        return was_on_probation or (worker.is_set_aside and is_first)

    def _candidates(self, avoid: Collection[str]) -> list[Worker]:
        """Those in `avoid` are among them only when all others are ejected."""
        candidates = [worker for worker in self.workers if worker.state is not WorkerState.EJECTED]
        return [worker for worker in candidates if worker.name not in avoid] or candidates

    def succeeded(self, worker: Worker) -> None:
        """An answer came."""
        worker.failures = worker.ejections = worker.ill = 0
        worker.is_on_probation = False

    def measured(self, worker: Worker, mark: Mark | None, tokens: int, seconds: float) -> None:
        """An answer of so many tokens took so long; `mark`: what `sent` gave."""
        if worker.pace is not None and mark is not None:
            worker.pace.answered(mark, tokens, seconds)
            worker.max_inflight = worker.pace.limit

    def failed(self, worker: Worker, is_dead: bool) -> bool:
        """A request failed by the worker's fault; returns whether this ejected it."""
        worker.failures += 1
        is_bad = is_dead or worker.ejections > 0 or worker.failures >= FAILURES_TO_EJECT
        return is_bad and self.eject(worker)

    def eject(self, worker: Worker) -> bool:
        """Give the worker no more requests; returns whether it got some before."""
        if worker.state is WorkerState.EJECTED:
            return False
        worker.state = WorkerState.EJECTED
        worker.ejections += 1
        self.failovers += 1
        self.on_eject(worker)
        return True

    def ejection_s(self, worker: Worker) -> float:
        """Seconds until it is asked whether it is well, for the first time since it is out."""
        times = min(worker.ejections - worker.ill, MAX_EJECTIONS) - 1
        return float(min(FIRST_EJECTION_S * EJECTION_GROWTH**times, MAX_EJECTION_S))

    def again_s(self, worker: Worker) -> float:
        """Seconds until it is asked again that was asked and is not well."""
        return min(self.ejection_s(worker), ILL_AGAIN_S)

    def is_still_ill(self, worker: Worker) -> None:
        """It was asked whether it is well, and is not."""
        worker.ejections += 1
        worker.ill += 1
        worker.is_starting = False

    def starting(self, worker: Worker) -> None:
        """It was asked whether it is well, and is being started."""
        worker.is_starting = True

    def readmit(self, worker: Worker) -> None:
        """It is well and serves the current weights."""
        worker.state = WorkerState.OPEN
        worker.failures = 0
        worker.is_starting = False
        worker.is_on_probation = True


def _busyness(worker: Worker) -> tuple[int, int]:
    return worker.tokens, worker.inflight


def make_workers(
    config: RolloutConfig, backends: Sequence[Backend], version: PolicyVersion, clock: Clock
) -> list[Worker]:
    """One for each backend, with what adapts its limit and what hears its signs of life, where there is one."""
    most = config.most_inflight(len(backends))
    first = -(-config.batch_groups * config.group_size // len(backends))
    workers = []
    for one in backends:
        pace = None
        if config.max_inflight is None:
            pace = InflightLimit(config.target_latency_s, most, first)
        worker = Worker(
            backend=one,
            max_inflight=config.max_inflight or most,
            reserved_share=config.reserved_share,
            version=version,
            pace=pace,
            pulse=Pulse(clock) if one.capabilities.streams else None,
        )
        if pace is not None:
            worker.max_inflight = pace.limit
        workers.append(worker)
    return workers
