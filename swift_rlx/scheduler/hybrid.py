"""Which generation batches are fresh and which come from the store: a function of their number alone.

Batch t comes from the store if floor((t + 1) r) - floor(t r) = 1, with r the offline ratio: as evenly as whole batches
can, the first one fresh unless r is 1. For twelve batches (N fresh, F from the store):

    r = 0.3   NNNFNNFNNFNN        r = 0.5   NFNFNFNFNFNF        r = 2/3   NFFNFFNFFNFF

All ranks compute the same, and a resumed run goes on from the state of the checkpoint.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from swift_rlx.errors import CheckpointError, ConfigError

_ROUNDING = 1e-9  # three batches at r = 1/3 make one, though 3 * (1/3) may be a little less in binary


class BatchSource(enum.Enum):
    """Where a generation batch comes from."""

    FRESH = "fresh"
    STORED = "stored"


def offline_ratio(ratio: float | None, online_every: int | None) -> float:
    """The share of stored batches by `--offline_ratio`, or by `--online_every` (one in N is fresh: 1 - 1/N); else 0.

    Raises:
        ConfigError: out of range, or both are given and differ.
    """
    if ratio is not None and not 0 <= ratio <= 1:
        raise ConfigError(f"--offline_ratio {ratio:g} is refused: it is a share of the batches, from 0 to 1")
    if online_every is None:
        return 0.0 if ratio is None else ratio
    if online_every < 1:
        raise ConfigError(
            f"--online_every {online_every} is refused: one batch in N is fresh, with N at least 1"
        )
    from_every = 1 - 1 / online_every
    if ratio is not None and abs(ratio - from_every) > 1e-6:
        raise ConfigError(
            f"--offline_ratio {ratio:g} with --online_every {online_every} is refused: one fresh batch in"
            f" {online_every} is a ratio of {from_every:.6g}; give one of them"
        )
    return from_every


@dataclass(frozen=True, slots=True)
class HybridState:
    """Batches so far; what a checkpoint keeps, plain numbers."""

    fresh: int = 0
    stored: int = 0
    lacking: int = 0
    """Of the fresh ones those that were due from the store, which had nothing that may train."""

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def of(cls, saved: Mapping[str, int]) -> HybridState:
        """Raises `CheckpointError` for something else."""
        try:
            state = cls(**saved)
            if min(state.fresh - state.lacking, state.stored, state.lacking) < 0:
                raise ValueError("counts below 0")
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"the state of the offline schedule cannot be read: {saved!r} ({error})"
            ) from error
        return state


class HybridSchedule:
    """Decides batch by batch, and counts.

        schedule = HybridSchedule(0.5)
        if schedule.take(has_stored=...) is BatchSource.STORED: ...

    Steps that only fill a wait are not its batches: they neither count nor move it. `ratio`: from `offline_ratio`.
    """

    def __init__(self, ratio: float, state: HybridState | None = None) -> None:
        if not 0 <= ratio <= 1:
            raise ConfigError(f"an offline ratio of {ratio:g} is refused: it is a share from 0 to 1")
        self.ratio = ratio
        self._state = state or HybridState()

    @property
    def state(self) -> HybridState:
        """The counts now."""
        return self._state

    @property
    def num_batches(self) -> int:
        """Decided so far."""
        return self._state.fresh + self._state.stored

    def due(self, number: int) -> BatchSource:
        """What batch `number` (from 0) is, if the store has what it needs."""
        after, before = (math.floor(count * self.ratio + _ROUNDING) for count in (number + 1, number))
        return BatchSource.STORED if after > before else BatchSource.FRESH

    def take(self, *, has_stored: bool) -> BatchSource:
        """What the next batch is; `has_stored`, the same on all ranks: whether the store has a batch that may train.

        A stored batch that the store cannot give becomes a fresh one and is counted; it is not made up for later.

        Raises:
            ConfigError: the ratio is 1, so there are no fresh ones, and the store has none either.
        """
        state, is_due = self._state, self.due(self.num_batches) is BatchSource.STORED
        if is_due and has_stored:
            self._state = HybridState(state.fresh, state.stored + 1, state.lacking)
            return BatchSource.STORED
        if self.ratio == 1:
            raise ConfigError(
                "--offline_ratio 1 is refused: the store has no batch of groups that may train; loosen the filters, or"
                " train on fresh batches too"
            )
        self._state = HybridState(state.fresh + 1, state.stored, state.lacking + is_due)
        return BatchSource.FRESH
