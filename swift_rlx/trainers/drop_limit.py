"""Groups that end without training make room for the next prompts; a run in which all do has to end."""

from collections import Counter
from collections.abc import Sequence

from swift_rlx.errors import RlxError
from swift_rlx.scheduler import GroupEnd, GroupOutcome
from swift_rlx.types import DropReason, Score

BATCHES = 10
"""As many generation batches of groups may be dropped in a row: a service that is down would use up all prompts."""


class DropLimit:
    """Told of every group that ends.

    `limit`: how many may be dropped in a row. `min_members`: scores that a group needs. Groups without spread were
    scored, and have a limit of their own.
    """

    def __init__(self, limit: int, min_members: int) -> None:
        self._limit = limit
        self._min_members = min_members
        self._reasons: Counter[str] = Counter()

    def scored(self, scores: Sequence[Score]) -> None:
        """A group has these scores."""
        if sum(score.reward is not None for score in scores) >= self._min_members:
            self._reasons.clear()

    def ended(self, end: GroupEnd) -> None:
        """A group ended. Raises RlxError where it is one too many in a row that was dropped."""
        if end.outcome is not GroupOutcome.DROPPED or end.drop_reason is None:
            return
        if end.drop_reason is DropReason.NO_SPREAD:
            self._reasons.clear()
            return
        self._reasons[end.drop_reason.value] += 1
        dropped = self._reasons.total()
        if dropped < self._limit:
            return
        reasons = ", ".join(f"{reason}: {count}" for reason, count in self._reasons.most_common())
        last = end.detail or "its rewards left too many answers unscored (None)"
        raise RlxError(
            f"{dropped} groups in a row were dropped ({reasons}), and the run would use up its prompts without"
            f" training; the last one: {last}; mend what fails there and resume from the last checkpoint"
        )
