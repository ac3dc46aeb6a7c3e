"""Stored batches while no fresh one is ready. They join the optimizer step that waits, so nothing grows old by them.

A token's age is counted in optimizer steps. A step on stored groups alone would make every token in flight a step
older, and where answers are long one of them always has a token at the bound: such a step would hardly ever be
allowed. A stored batch is therefore no step of its own. Its gradient is added to that of the fresh batch that the
trainer waits for, and the step is made when that has come: no weights are published in between, no age changes, every
deadline of the scheduler stays.

What it costs: a fresh batch that becomes ready meanwhile waits until the stored one is done. So a stored batch should
be a small part of a generation batch. After `max_in_a_row` of them the trainer waits for the fresh one in any case,
which bounds their share of a step. They are counted apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from swift_rlx.clock import Clock
from swift_rlx.errors import ConfigError

MAX_IN_A_ROW = 64


@dataclass(frozen=True, slots=True)
class FillCounts:
    """Since the start of the process."""

    batches: int
    """Stored batches that filled a wait."""
    seconds: float
    """That they took, each from when it was given until the trainer asked again."""
    waits_without_store: int
    """Fresh batches that had to be waited for while the store had nothing that may train."""
    waits_at_the_limit: int
    """The same after `max_in_a_row` stored ones."""


class WaitFiller:
    """Decides for one trainer; on several ranks the one that picks up decides for all.

    `has_stored`: set by the trainer, whether the store has a batch that may train.
    """

    def __init__(self, clock: Clock, max_in_a_row: int = MAX_IN_A_ROW) -> None:
        if max_in_a_row < 1:
            raise ConfigError(f"max_in_a_row {max_in_a_row} is refused: it must be at least 1")
        self.has_stored = False
        self._clock = clock
        self._max_in_a_row = max_in_a_row
        self._in_a_row = 0
        self._batches = 0
        self._seconds = 0.0
        self._waits_without_store = 0
        self._waits_at_the_limit = 0
        self._filled_at: float | None = None
        self._has_waited = False

    def asked(self) -> None:
        """The trainer asks for its next batch."""
        if self._filled_at is not None:
            self._seconds += self._clock.now() - self._filled_at
            self._filled_at = None
        self._has_waited = False

    def decide(self) -> bool:
        """No fresh batch is ready: whether the trainer takes a stored one. Asked again when something has changed."""
        if not self.has_stored or self._in_a_row >= self._max_in_a_row:
            self._has_waited = True
            return False
        self._in_a_row += 1
        self._batches += 1
        self._filled_at = self._clock.now()
        return True

    def came(self) -> None:
        """A fresh batch is there, or none will come any more."""
        if self._has_waited:
            if self._in_a_row >= self._max_in_a_row:
                self._waits_at_the_limit += 1
            else:
                self._waits_without_store += 1
        self._in_a_row = 0

    @property
    def has_filled(self) -> bool:
        """Whether a stored batch was given since the last fresh one."""
        return self._in_a_row > 0

    @property
    def counts(self) -> FillCounts:
        """So far."""
        return FillCounts(self._batches, self._seconds, self._waits_without_store, self._waits_at_the_limit)
