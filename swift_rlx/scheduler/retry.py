"""When a failed request is tried again, how long each attempt may take, and how many tries a time allows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from swift_rlx.errors import BackendError, BackendTimeout, BackendUnavailable
from swift_rlx.scheduler.time_limits import Limits

BACKOFF_S = 0.1
"""Wait before the second attempt; doubled with each further one, up to `MAX_BACKOFF_S`."""
MAX_BACKOFF_S = 10.0
BUDGET_WINDOW_S = 10.0
BUDGET_SHARE = 0.2
BUDGET_WAIT_S = 1.0
"""After how long a retry that the budget does not allow is looked at again."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`retries` further attempts after the first, for errors that another worker may not have."""

    retries: int
    limits: Limits

    def limits_of(self, timeouts: int) -> Limits:
        """After so many timeouts: doubled by each, so that long answers and slow workers come through."""
        first, factor = self.limits, 2.0**timeouts
        return Limits(
            first.total_s * factor, first.first_token_s * factor, first.token_gap_s * factor, first.grace_s
        )

    def wait_s(self, attempt: int, error: BackendError, chance: float) -> float | None:
        """Seconds until the next attempt after attempt `attempt` failed; None: give the request up.

        `chance` in [0, 1) spreads requests that failed together over half of the wait.
        """
        if not isinstance(error, (BackendTimeout, BackendUnavailable)) or attempt > self.retries:
            return None
        return min(BACKOFF_S * 2.0 ** (attempt - 1), MAX_BACKOFF_S) * (1 - chance / 2)


class RetryBudget:
    """Keeps an outage from multiplying the load on workers that fail.

    Within `BUDGET_WINDOW_S` there are no more retries than the workers have slots or, where that is more, than
    `BUDGET_SHARE` of the requests: every slot may fail once and be tried again at once, and a worker that goes on to
    fail some of its requests gets a fifth more of them, not twice as many. Requests of a dead worker do not count:
    its load is gone. What is not allowed waits; nothing is given up for it.
    """

    def __init__(self) -> None:
        self._requests = self._retries = self._last_s = 0.0

    def sent(self, now: float) -> None:
        """A request is sent for the first time."""
        self._forget(now)
        self._requests += 1

    def allows_retry(self, now: float, slots: int) -> bool:
        """Whether another retry may be sent; if so it is counted."""
        self._forget(now)
        if self._retries + 1 > max(slots, BUDGET_SHARE * self._requests):
            return False
        self._retries += 1
        return True

    def _forget(self, now: float) -> None:
        """Both counts fade, by a factor of e in a window."""
        faded = math.exp((self._last_s - now) / BUDGET_WINDOW_S)
        self._requests *= faded
        self._retries *= faded
        self._last_s = now
