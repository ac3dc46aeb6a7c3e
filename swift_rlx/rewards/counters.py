"""What happened while a reward scored."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from swift_rlx.rewards.outcome import OVER_LIMIT


@dataclass
class RewardCounters:
    """What happened since the counters were last taken.

    calls: of this object, one per batch. rows: completions scored. failures: rows whose reward failed, by exception
    type, or `TimeLimit` or `ProcessEnded`. non_finite: rows with NaN or infinity. none: rows handed on as unscored,
    for whatever reason. retries: calls that were made again. cached: rows whose score was known.
    """

    calls: int = 0
    rows: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    non_finite: int = 0
    none: int = 0
    retries: int = 0
    cached: int = 0

    @property
    def failed(self) -> int:
        """Rows that got no number of the reward's own."""
        return sum(self.failures.values()) + self.non_finite

    @property
    def over_limit(self) -> int:
        """Rows that took too long."""
        return self.failures[OVER_LIMIT]

    def add(self, other: RewardCounters) -> None:
        """Count what another one counted too."""
        self.calls += other.calls
        self.rows += other.rows
        self.failures.update(other.failures)
        self.non_finite += other.non_finite
        self.none += other.none
        self.retries += other.retries
        self.cached += other.cached
