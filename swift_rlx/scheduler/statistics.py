"""The counters of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from swift_rlx.scheduler.state import RunState
from swift_rlx.types import DropReason, Fate


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters of a run, over all of its starts. admitted = trained + dropped + carried + open."""

    admitted: int
    trained: int
    dropped: dict[DropReason, int]
    carried: int
    open: int
    regenerated: int
    ready: int
    inflight: int
    waiting_requests: int
    retries: int
    repeated_tokens: int
    """Tokens that were made a second time, because an attempt failed and the next could not go on behind them."""
    failovers: int
    """Times that a worker was taken out because of failures."""
    failures: dict[str, int]
    """Failed attempts by kind of error."""
    staleness: Counter[int]
    """Trained tokens by staleness in optimizer steps."""
    generated_tokens: int
    tokens: dict[Fate, int]
    max_inflight: dict[str, int] = field(default_factory=dict)
    """How many requests each worker may have in flight now."""
    away_s: float = 0.0
    """How long, in this start of the run, every worker was out at once."""


def statistics_of(run: RunState, waiting_requests: int) -> Statistics:
    """The counters now."""
    return Statistics(
        admitted=run.capacity.admitted,
        trained=run.book.trained,
        dropped=dict(run.book.dropped),
        carried=run.book.carried,
        open=len(run.book),
        regenerated=run.book.regenerated,
        ready=len(run.ready),
        inflight=run.router.inflight,
        waiting_requests=waiting_requests,
        retries=run.retries,
        repeated_tokens=run.repeated_tokens,
        failovers=run.router.failovers,
        failures=dict(run.failures),
        staleness=Counter(run.staleness),
        generated_tokens=run.ledger.generated,
        tokens={fate: run.ledger.tokens(fate) for fate in Fate},
        max_inflight={worker.name: worker.max_inflight for worker in run.router.workers},
        away_s=run.away.seconds,
    )
