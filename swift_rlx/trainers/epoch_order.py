"""Which prompt comes when: a function of (seed, epoch, index) alone, shared by the sampler and the pipeline."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from swift_rlx.scheduler import BatchSource, HybridSchedule
from swift_rlx.types import Prompt


def permutation(num_rows: int, seed: int, epoch: int) -> list[int]:
    """The `epoch`-th draw of a generator with this seed: the order in which TRL's RepeatSampler visits the rows."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    for _ in range(epoch):
        torch.randperm(num_rows, generator=generator)
    return torch.randperm(num_rows, generator=generator).tolist()


@dataclass(frozen=True)
class EpochOrder:
    """The order of a data set of `num_rows`, of which an epoch takes whole generation batches of `batch_prompts`."""

    num_rows: int
    batch_prompts: int
    seed: int
    shuffle: bool

    @property
    def prompts_per_epoch(self) -> int:
        """Rows of an epoch; those of an incomplete last batch are left out, others in each epoch if shuffled."""
        return self.num_rows // self.batch_prompts * self.batch_prompts

    def rows(self, epoch: int) -> list[int]:
        """Row numbers of an epoch, in the order of admission."""
        order = permutation(self.num_rows, self.seed, epoch) if self.shuffle else list(range(self.num_rows))
        return order[: self.prompts_per_epoch]


class EpochPrompts:
    """A source of prompts for the scheduler that goes through the epochs, without an end.

    The scheduler stops it (`max_batches`). A prompt that ended without training is thereby replaced by one
    that comes later in the order. `encode(row, epoch)` makes the prompt, in the thread of the pipeline.
    `position`: prompts that were handed out before, by earlier starts of the run.
    """

    is_exhausted = False

    def __init__(self, order: EpochOrder, encode: Callable[[int, int], Prompt], position: int = 0) -> None:
        self.position = position
        self._order = order
        self._encode = encode
        self._epoch = -1
        self._rows: list[int] = []

    def next(self) -> Prompt:
        """The next prompt of the order."""
        epoch, at = divmod(self.position, self._order.prompts_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._rows = epoch, self._order.rows(epoch)
        self.position += 1
        return self._encode(self._rows[at], epoch)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Nothing is ever added."""


def micro_steps_at(optimizer_step: int, accumulation: int, micro_steps_per_epoch: int) -> int:
    """Micro-batches trained before this optimizer step; an epoch's last step may take fewer than `accumulation`."""
    steps_per_epoch = -(-micro_steps_per_epoch // accumulation)
    epochs, steps = divmod(optimizer_step, steps_per_epoch)
    return epochs * micro_steps_per_epoch + min(steps * accumulation, micro_steps_per_epoch)


def batches_at(optimizer_step: int, accumulation: int, per_generation: int, batches_per_epoch: int) -> int:
    """Generation batches picked up before this optimizer step, each of `per_generation` micro-batches."""
    done = micro_steps_at(optimizer_step, accumulation, batches_per_epoch * per_generation)
    return -(-done // per_generation)


def epoch_order(trainer: Any) -> EpochOrder:
    """The order in which the trainer's sampler visits the rows."""
    args = trainer.args
    return EpochOrder(
        num_rows=len(trainer.train_dataset),
        batch_prompts=args.generation_batch_size // trainer.num_generations,
        seed=args.seed,
        shuffle=bool(trainer.shuffle_dataset),
    )


def batches_before(trainer: Any, step: int) -> int:
    """Generation batches that the trainer picks up before this optimizer step."""
    order, per_generation = epoch_order(trainer), trainer.args.steps_per_generation * trainer.num_iterations
    per_epoch = order.prompts_per_epoch // order.batch_prompts
    return batches_at(step, trainer.args.gradient_accumulation_steps, per_generation, per_epoch)


def fresh_batches(ratio: float, picked_before: Callable[[int], int]) -> Callable[[int], int]:
    """How many of the generation batches of an optimizer step are fresh, where the others come from a store.

    `picked_before(step)`: generation batches that are picked up before an optimizer step.
    """
    schedule = HybridSchedule(ratio)

    @functools.cache
    def fresh(step: int) -> int:
        numbers = range(picked_before(step), picked_before(step + 1))
        return sum(schedule.due(number) is BatchSource.FRESH for number in numbers)

    return fresh


def rows_of(dataset: Any, index: int) -> dict[str, Any]:
    """A row of the data set as the data loader gives it: a dict of its own."""
    return dict(dataset[index])
