"""Stored batches while no fresh one is ready, as long as they make nothing over age.

A stored batch takes one of the trainer's pick-ups: those who wait get a later one, and after the last pick-up of an
optimizer step every token is a step older. With `left` the pick-ups of this step after the stored batch, it is
allowed if

1. no token goes over age by it: of the groups with a token that is at the bound, as many as there are may still be
   picked up at this step, so there are at most left * batch_groups of them. With one pick-up a step there must be none;
2. no group goes over age as a whole: for L = 0, 1, 2, ..., of the groups that are ready or being made again at most
   (left + L * batches_per_step) * batch_groups have to be picked up within L steps.

Groups that are being made count in 1 with every step since they began, whether or not they had a token in each. After
`max_in_a_row` stored batches the trainer waits for a fresh one in any case: weights that are published again and again
keep workers from generating. What a stored batch trains is counted apart.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass

from swift_rlx.clock import Clock
from swift_rlx.errors import ConfigError
from swift_rlx.scheduler.config import RolloutConfig


class FillVerdict(enum.Enum):
    """Why the trainer takes a stored batch, or waits."""

    FILL = "filled"
    NOTHING_STORED = "nothing stored"
    TOKENS_WOULD_AGE = "tokens would go over age"
    GROUPS_WOULD_AGE = "groups would go over age"
    ENOUGH = "enough in a row"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the trainer waits for, at a moment when no fresh batch is ready. Steps are optimizer steps."""

    step: int
    """The trainer's."""
    picks_left: int
    """Pick-ups of this step that are not made, the one that waits included."""
    token_deadlines: tuple[int, ...] = ()
    """For each group that was admitted and not picked up: the last step at which its oldest token within the bound
    trains."""
    group_deadlines: tuple[int, ...] = ()
    """For each group that is ready or being made again: the last step at which any of it trains."""


@dataclass(frozen=True, slots=True)
class FillCounts:
    """Since the start of the process."""

    batches: int
    seconds: float
    """That stored batches took, from their pick-up until the trainer asked again."""
    refused: dict[FillVerdict, int]
    """Waits that ended with a fresh batch, by what the last verdict was."""


class WaitFiller:
    """Decides for one trainer. `has_stored`: set by the trainer, whether the store has a batch that may train."""

    def __init__(self, config: RolloutConfig, clock: Clock, max_in_a_row: int = 8) -> None:
        if max_in_a_row < 1:
            raise ConfigError(f"max_in_a_row {max_in_a_row} is refused: it must be at least 1")
        self.has_stored = False
        self._max_in_a_row = max_in_a_row
        self._in_a_row = 0
        self._config = config
        self._clock = clock
        self._batches = 0
        self._seconds = 0.0
        self._refused: Counter[FillVerdict] = Counter()
        self._filled_at: float | None = None
        self._last: FillVerdict | None = None

    def verdict(self, waiting: Waiting) -> FillVerdict:
        """The decision alone, without counting it."""
        config, left = self._config, max(waiting.picks_left - 1, 0)
        if not self.has_stored:
            return FillVerdict.NOTHING_STORED
        if self._in_a_row >= self._max_in_a_row:
            return FillVerdict.ENOUGH
        at_the_bound = sum(config.level(one, waiting.step) <= 0 for one in waiting.token_deadlines)
        if at_the_bound > left * config.batch_groups:
            return FillVerdict.TOKENS_WOULD_AGE
        for number, deadline in enumerate(sorted(waiting.group_deadlines), start=1):
            level = config.level(deadline, waiting.step)
            picks = left + level * config.batches_per_step if level >= 0 else 0
            if number > picks * config.batch_groups:
                return FillVerdict.GROUPS_WOULD_AGE
        return FillVerdict.FILL

    def asked(self) -> None:
        """The trainer asks for its next batch."""
        if self._filled_at is not None:
            self._seconds += self._clock.now() - self._filled_at
            self._filled_at = None
        self._last = None

    def decide(self, waiting: Waiting) -> bool:
        """Whether the trainer takes a stored batch now; asked again whenever something has changed."""
        self._last = self.verdict(waiting)
        if self._last is not FillVerdict.FILL:
            return False
        self._batches += 1
        self._in_a_row += 1
        self._filled_at = self._clock.now()
        return True

    def came(self) -> None:
        """A fresh batch is there; where it had to be waited for, the last verdict is counted."""
        self._in_a_row = 0
        if self._last is not None:
            self._refused[self._last] += 1

    @property
    def counts(self) -> FillCounts:
        """So far."""
        return FillCounts(self._batches, self._seconds, dict(self._refused))
