"""The order of prompts as a function of (seed, epoch) alone, so that a resumed run continues it in any epoch."""

from collections.abc import Iterator
from typing import Any

import torch
from trl.trainer.utils import RepeatSampler


class EpochSampler(RepeatSampler):
    """TRL's RepeatSampler, whose permutation of epoch e is the (e+1)-th draw of its generator.

    The parent keeps one generator and draws from it at each `iter()`, so that a resumed process starts again with
    the permutation of epoch 0. Here `epoch` says which draw is meant; a run from the start sees the parent's order.
    `epoch` moves on by one at each `iter()`, and the trainer sets it at each epoch's beginning.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator = torch.Generator()
            self.generator.manual_seed(self.seed)
            for _ in range(self.epoch):
                torch.randperm(self.num_samples, generator=self.generator)
        self.epoch += 1
        return super().__iter__()
