"""When a failed request is tried again, and how long each attempt may take."""

from __future__ import annotations

from dataclasses import dataclass

from swift_rlx.errors import BackendError, BackendTimeout, BackendUnavailable

BACKOFF_S = 0.1
"""Wait before the second attempt; doubled with each further one, up to `MAX_BACKOFF_S`."""
MAX_BACKOFF_S = 10.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`retries` further attempts after the first, for errors that another worker may not have."""

    retries: int
    timeout_s: float

    def limit_s(self, attempt: int) -> float:
        """Seconds for attempt 1, 2, ...: doubled each time, so that long answers come through."""
        return self.timeout_s * 2.0 ** (attempt - 1)

    def wait_s(self, attempt: int, error: BackendError, chance: float) -> float | None:
        """Seconds until the next attempt after attempt `attempt` failed; None: give the request up.

        `chance` in [0, 1) spreads requests that failed together over half of the wait.
        """
        if not isinstance(error, (BackendTimeout, BackendUnavailable)) or attempt > self.retries:
            return None
        return min(BACKOFF_S * 2.0 ** (attempt - 1), MAX_BACKOFF_S) * (1 - chance / 2)
