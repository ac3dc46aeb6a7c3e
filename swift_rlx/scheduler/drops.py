"""Groups that end without training: told of, and a run in which nothing else happens any more is ended.

A permanent fault (a reward that is None for every answer, a worker whose every answer is refused) drops group after
group, and each gives its place to another prompt; without an end all epochs would be eaten while the trainer waits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from swift_rlx.errors import BackendError, RewardError, RlxError
from swift_rlx.scheduler.groups import OpenGroup
from swift_rlx.types import DropReason, TrajectoryGroup

LEAST_IN_A_ROW = 16
"""So many groups in a row, or as many as there are places, and the run ends."""

logger = logging.getLogger("swift_rlx")


class DropWatch:
    """Counts drops in a row, in the order of admission. `fail` ends the run with an error; `limit`: how many it takes.

    Refusals are faster than answers, so many drops may come before the first answer of a group that is well. Such a
    group stands between those that are dropped, and so they are not in a row.
    `last`: what was said of the newest drop, empty before the first one.
    """

    def __init__(self, limit: int, fail: Callable[[RlxError], None]) -> None:
        self.last = ""
        self._limit = limit
        self._fail = fail
        self._dropped: set[int] = set()
        self._told: set[DropReason] = set()

    def dropped(self, group: OpenGroup, record: TrajectoryGroup, reason: DropReason) -> None:
        """A group was dropped; those that the scorer turned away are not for lack of anything."""
        if reason is DropReason.NO_SPREAD:
            return
        why = _without_scores(record) if reason is DropReason.TOO_FEW_SCORED else _without_answers(group)
        self.last = f"prompt {group.prompt.key} was dropped for {reason.value}: {why}"
        if reason not in self._told:
            self._told.add(reason)
            logger.warning("%s (later ones are counted, not told)", self.last)
        if (in_a_row := self._count(group.order)) >= self._limit:
            kind = RewardError if reason is DropReason.TOO_FEW_SCORED else BackendError
            self._fail(kind(f"{in_a_row} groups in a row ended without training; the last one, {self.last}"))

    def _count(self, order: int) -> int:
        """How many drops in a row there are now around the group of this number."""
        self._dropped.add(order)
        if len(self._dropped) > 8 * self._limit:  # the oldest have nothing to do with what happens now
            self._dropped = set(sorted(self._dropped)[-4 * self._limit :])
        first = last = order
        while first - 1 in self._dropped:
            first -= 1
        while last + 1 in self._dropped:
            last += 1
        return last - first + 1


def _without_answers(group: OpenGroup) -> str:
    """The first reason: those after it may only follow from it."""
    reason = next(iter(group.failed.values()), "")
    return f"{len(group.failed)} of {group.size} answers failed, the first because {reason}"


def _without_scores(record: TrajectoryGroup) -> str:
    scores = [member.score for member in record.members]
    missing = Counter(part.name for score in scores for part in score.breakdown if part.value is None)
    by_name = ", ".join(f"{name} ({count})" for name, count in missing.items())
    given = sum(score.reward is not None for score in scores)
    told = f"; without a value: {by_name}" if by_name else ""
    return f"{given} of {len(scores)} answers have a reward{told}"
