"""Which calls score a batch, and what their outcomes mean for its rows, whoever carries the calls out.

Invariants
- The result has one entry per completion: a float that is finite in float32, or None for an unscored row.
- A wrong length or type is the reward's programming error and always raised.
- An exception, or a value that is not finite, follows the policy (`OnError`).
- A row over the time limit is unscored under `raise` too: what the completion says brought it there. Many in a row
  are no accident of completions, and end the run.
- A fault of the infrastructure never becomes a reward: it is raised, or the row is unscored.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from typing import Any, NoReturn

from swift_rlx.errors import RewardError
from swift_rlx.rewards.batch import Call, RewardBatch
from swift_rlx.rewards.counters import RewardCounters
from swift_rlx.rewards.on_error import RAISE, OnError
from swift_rlx.rewards.outcome import Failure, Fault, Outcome, Refusal
from swift_rlx.rewards.spec import RewardSpec

logger = logging.getLogger(__name__)

LARGEST = (2 - 2**-23) * 2.0**127
"""The largest float32: ms-swift keeps rewards in it."""
MAX_OVER_LIMIT_IN_A_ROW = 32

Steps = Generator[list[Call], list[Outcome], list[float | None]]


class ScoringPlan:
    """`steps` yields calls, is sent their outcomes in order, and returns the values of the rows.

    Where the policy is to stop at a failure, outcomes behind the first one may be left out.
    """

    def __init__(self, spec: RewardSpec, on_error: OnError = RAISE) -> None:
        self.spec = spec
        self.on_error = on_error
        self._warned: set[tuple[Any, ...]] = set()
        self._over_limit_in_a_row = 0

    def ends_at(self, outcome: Outcome) -> bool:
        """Whether this outcome ends the scoring, so that further calls are in vain."""
        failure = outcome.failure
        return self.on_error.raises and failure is not None and failure.fault is not Fault.LIMIT

    def steps(self, completions: Sequence[Any], columns: dict[str, Any], counters: RewardCounters) -> Steps:
        """Raises RewardError."""
        batch = RewardBatch(self.spec, completions, columns)
        rows = range(len(batch))
        counters.calls += 1
        counters.rows += len(rows)
        if not rows:
            return []
        if self.spec.per_completion:
            outcomes = yield [batch.single(row) for row in rows]
        else:
            [whole] = yield [batch.whole()]
            if whole.refusal is not None:
                self._refuse(batch, whole.refusal, whole.refusal.row)
            if whole.failure is None:
                outcomes = [whole.alone(row) for row in rows]
            elif len(rows) == 1:
                outcomes = [whole]
            elif self.spec.scope == "batch":
                outcomes = self._blame_the_batch(batch, whole, whole.failure)
            else:
                alone = yield [batch.slice_of(row) for row in rows]
                self._check_blame(batch, alone, whole, whole.failure)
                outcomes = alone
        scores = [self._score(batch, row, outcome, counters) for row, outcome in enumerate(outcomes)]
        counters.none += scores.count(None)
        return scores

    def _blame_the_batch(self, batch: RewardBatch, whole: Outcome, failure: Failure) -> list[Outcome]:
        if self.ends_at(whole):
            raise RewardError(f"{self.spec.label} {failure.told} on a batch of {len(batch)}") from whole.error
        return [whole] * len(batch)

    def _check_blame(
        self, batch: RewardBatch, alone: list[Outcome], whole: Outcome, failure: Failure
    ) -> None:
        """An exception that no row raises alone has no row to blame; that all of them took too long needs none."""
        if (
            self.on_error.raises
            and failure.fault is Fault.REWARD
            and not any(outcome.failure is not None for outcome in alone)
        ):
            raise RewardError(
                f"{self.spec.label} {failure.told} on a batch of {len(batch)}, but on none of its rows alone"
            ) from whole.error

    def _refuse(self, batch: RewardBatch, refusal: Refusal, row: int | None) -> NoReturn:
        where = "" if row is None else f", on {batch.describe(row)}"
        raise RewardError(f"{self.spec.label} {refusal.text}{where}")

    def _score(
        self, batch: RewardBatch, row: int, outcome: Outcome, counters: RewardCounters
    ) -> float | None:
        if (refusal := outcome.refusal) is not None:
            self._refuse(batch, refusal, None if refusal.row is None else row)
        if (failure := outcome.failure) is not None:
            counters.failures[failure.kind] += 1
            self._count_over_limit(failure)
            return self._failed(batch, row, failure, outcome.error)
        assert outcome.values is not None
        self._over_limit_in_a_row = 0
        [value] = outcome.values
        if value is None or abs(value) <= LARGEST:  # false for NaN
            return value
        counters.non_finite += 1
        return self._failed(batch, row, Failure("not finite", f"returned {value}"), None)

    def _count_over_limit(self, failure: Failure) -> None:
        if failure.fault is not Fault.LIMIT:
            return
        self._over_limit_in_a_row += 1
        if self.on_error.raises and self._over_limit_in_a_row >= MAX_OVER_LIMIT_IN_A_ROW:
            raise RewardError(
                f"{self.spec.label} {failure.told}, for {MAX_OVER_LIMIT_IN_A_ROW} rows without a score between them:"
                " no fault of single completions; raise --reward_timeout_s, or make the reward faster"
            )

    def _failed(
        self, batch: RewardBatch, row: int, failure: Failure, error: BaseException | None
    ) -> float | None:
        if self.on_error.raises and failure.fault is not Fault.LIMIT:
            raise RewardError(
                f"{self.spec.label} {failure.told} on {batch.describe(row)}; {self.on_error.flag} none leaves such a"
                " row unscored"
            ) from error
        value = None if failure.fault is Fault.INFRASTRUCTURE else self.on_error.value
        if failure.cause not in self._warned:
            self._warned.add(failure.cause)
            given = "is unscored" if value is None else f"gets {value:g}"
            logger.warning(
                "%s %s on %s; the row %s, further ones like it are only counted",
                self.spec.label, failure.told, batch.describe(row), given,
            )  # fmt: skip
        return value
