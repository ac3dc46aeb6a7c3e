"""`--dynamic_sample` in the pipeline: groups of equal rewards make room for other prompts."""

import math
from collections.abc import Sequence

import torch
from swift.utils import get_logger

from swift_rlx.rewards import RewardCombiner
from swift_rlx.scheduler import GroupRejected
from swift_rlx.types import DropReason, Score

logger = get_logger()


class SpreadFilter:
    """Turns groups away whose rewards are all equal, because they have no gradient.

    `combiner`: of the rewards. `limit`: how many groups may be turned away between two pick-ups; then they train.
    """

    def __init__(self, combiner: RewardCombiner, limit: int) -> None:
        self._combiner = combiner
        self._limit = limit
        self._rejected = 0

    def picked_up(self) -> None:
        """A batch was taken: count again."""
        self._rejected = 0

    def check(self, scores: Sequence[Score]) -> None:
        """Raise `GroupRejected` for a group without spread."""
        values = [
            [math.nan if part.value is None else part.value for part in score.breakdown] for score in scores
        ]
        rewards = torch.tensor(values, dtype=torch.float32)
        combined = self._combiner.combine(rewards, torch.zeros(len(rewards), dtype=torch.long))
        valid = combined.rewards_B[combined.valid_B]
        if len(valid) == 0 or valid.max() > valid.min():
            return
        self._rejected += 1
        if self._rejected <= self._limit:
            raise GroupRejected(DropReason.NO_SPREAD, scores)
        if self._rejected == self._limit + 1:
            logger.warning(
                f"{self._limit} groups were turned away for equal rewards since the last batch"
                " (--max_resample_times): the next ones train as they are"
            )
