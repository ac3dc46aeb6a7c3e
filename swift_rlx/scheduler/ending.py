"""What is told of a group when it ends, or when it begins anew because all of it was over age."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from swift_rlx.types import DropReason, Fate, TrajectoryGroup


class GroupOutcome(enum.Enum):
    """How a group ended."""

    TRAINED = "trained"
    OVER_AGE = "over age"
    """Every token of it was over the bound; its prompt is not at its end but is generated again."""
    DROPPED = "dropped"
    """Its place went to another prompt."""
    CARRIED = "carried over"
    """The run ended before it."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupEnd:
    """A group's end. `group` holds the answers that exist, maybe none; unscored ones have the reward None.

    `drop_reason` is there where it was dropped, `detail` where the scorer that rejected it said more.
    """

    group: TrajectoryGroup
    outcome: GroupOutcome
    drop_reason: DropReason | None = None
    detail: str = ""


def fate_of_dropped(reason: DropReason) -> Fate:
    """What becomes of the tokens of a group that is dropped for this reason."""
    return Fate.REJECTED if reason is DropReason.NO_SPREAD else Fate.FAILED


OnEnd = Callable[[GroupEnd], None]
"""Called once for every group that ends, and for each round of one that was over age."""
