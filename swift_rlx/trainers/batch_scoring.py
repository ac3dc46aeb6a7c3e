"""Rewards that look at a whole generation batch (`scope="batch"`), scored beside the training.

The batch is made when the trainer picks it up. What it will most likely be is known before, once enough groups are
ready: these are scored ahead. Where the choice was another one, or a reward has changed meanwhile, the batch that came
is scored then, while the trainer waits.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from swift_rlx.rewards.runner import Scored
from swift_rlx.trainers.group_scoring import GroupScorer, with_scores
from swift_rlx.types import RewardPart, Score, TrainBatch, Trajectory, TrajectoryGroup

Groups = Sequence[TrajectoryGroup]
ByColumn = dict[int, Scored]


@dataclass(frozen=True)
class _Begun:
    """A scoring of these groups, in the order of their admission."""

    groups: Groups
    scores: "Future[ByColumn]"

    def is_of(self, groups: Groups) -> bool:
        return _answers(self.groups) == _answers(groups)


class BatchScorer:
    """`expect` from any thread, as often as wanted; `scored` in the trainer's. `scorer`: has the rewards."""

    def __init__(self, scorer: GroupScorer) -> None:
        self._scorer = scorer
        self._lock = threading.RLock()  # a scoring may be done when it is begun
        self._begun: _Begun | None = None
        self._expected: Groups = ()
        self._failure: BaseException | None = None

    @property
    def _has_rewards(self) -> bool:
        return bool(self._scorer.of_batches())

    def expect(self, groups: Groups) -> None:
        """The next batch will most likely be these; returns at once. Empty: nothing is known.

        One scoring at a time: what is expected meanwhile begins after it, if it is still expected then.
        """
        if not groups or not self._has_rewards:
            return
        with self._lock:
            self._expected = _in_order(groups)
            self._begin_expected()

    def scored(self, batch: TrainBatch) -> tuple[TrainBatch, dict[str, str]]:
        """The batch with these rewards among the scores of its answers, and the version of each.

        Waits for them. Raises what a reward raises under `--reward_on_error raise`, also in what was scored in vain.
        """
        groups = _in_order([one.group for one in batch.groups])
        if not groups or not self._has_rewards:
            return batch, {}
        with self._lock:
            begun, self._begun, self._expected = self._begun, None, ()
            if self._failure is not None:
                raise self._failure
        is_foreseen, found = begun is not None and begun.is_of(groups), {}
        if begun is not None and (is_foreseen or begun.scores.done()):
            found = begun.scores.result()
        if not (is_foreseen and self._scorer.is_current(found)):
            found = self._begin(groups).scores.result()
        return _with_parts(batch, groups, self._scorer.named(found)), self._scorer.trained_by(found)

    def _begin_expected(self) -> None:
        """With the lock."""
        if self._begun is not None and (not self._begun.scores.done() or self._begun.is_of(self._expected)):
            return
        self._begun = self._begin(self._expected)
        self._begun.scores.add_done_callback(self._go_on)

    def _begin(self, groups: Groups) -> _Begun:
        return _Begun(groups, self._scorer.begin_batch(groups))

    def _go_on(self, ended: "Future[ByColumn]") -> None:
        with self._lock:
            if not ended.cancelled() and (error := ended.exception()) is not None:
                self._failure = error
            elif self._begun is not None and self._begun.scores is ended and self._expected:
                self._begin_expected()


def _in_order(groups: Groups) -> Groups:
    return sorted(groups, key=lambda group: group.order)


def _answers(groups: Groups) -> list[Any]:
    """What tells two batches apart: a group that is made again has another round."""
    return [(group.order, group.rounds, len(group.members)) for group in groups]


def _with_parts(batch: TrainBatch, groups: Groups, scores: Sequence[tuple[str, Scored]]) -> TrainBatch:
    answers = [(group.order, member.member) for group in groups for member in group.members]
    row_of = {answer: row for row, answer in enumerate(answers)}

    def score_of(order: int, member: Trajectory) -> Score:
        row = row_of[order, member.member]
        parts = tuple(RewardPart(name, scored.values[row], scored.version) for name, scored in scores)
        return replace(member.score, breakdown=member.score.breakdown + parts)

    changed = [
        with_scores(one, [score_of(one.group.order, member) for member in one.group.members])
        for one in batch.groups
    ]
    return replace(batch, groups=tuple(changed))
