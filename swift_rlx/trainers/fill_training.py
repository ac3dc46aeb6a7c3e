"""A stored batch that fills a wait: its gradient joins that of the step which waits for its fresh batch (`WaitFiller`).

    gradient of the step = that of its generation batches + sum over its fills of n / N x mean gradient of the fill

with n the rows of the fill and N those of the step, so that a stored row weighs as much as a fresh one.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

FILL_PART = 8


class FillTrainingMixin:
    """For StoredTrainingMixin, whose picked batch is the fill and whose metrics it keeps apart."""

    _is_fill = False

    @property
    def micro_batches_per_window(self) -> int:
        return self._fill_micro_batches if self._is_fill else super().micro_batches_per_window

    @property
    def _fill_micro_batches(self) -> int:
        """Of a rank."""
        rows = len(self._picked.rows) // self.accelerator.num_processes
        return -(-rows // self.args.per_device_train_batch_size)

    def split_by_mini_batches(self, samples: list[Any]) -> list[list[Any]]:
        if not self._is_fill:
            return super().split_by_mini_batches(samples)
        size = self.args.per_device_train_batch_size
        return [samples[at : at + size] for at in range(0, len(samples), size)]

    def _train_fill(self, samples: list[Any]) -> None:
        """Add the gradient of the picked rows to that of the step; on all ranks."""
        self._is_fill = True
        logs, self._logs = self._logs, defaultdict(list, rewards=defaultdict(list))
        try:
            encoded = self._prepare_batch_inputs(self._score_completions(samples))
            self._postprocess_batch(samples, encoded)
            with self._metrics_apart(), self._without_reduction():
                for micro_batch in encoded:
                    self._add_gradient(micro_batch)
        finally:
            self._logs, self._is_fill = logs, False

    def _add_gradient(self, micro_batch: dict[str, Any]) -> None:
        args, ranks = self.args, self.accelerator.num_processes
        with self.compute_loss_context_manager():
            loss = self.compute_loss(self.model_wrapped, micro_batch)
        # The loss is made so that a mean over the micro-batches of a step is the step's; here it is a plain sum.
        sum_of_means = loss / min(self.current_gradient_accumulation_steps, args.steps_per_generation)
        rows_of_step = args.per_device_train_batch_size * self.current_gradient_accumulation_steps * ranks
        self.accelerator.backward(sum_of_means * len(self._picked.rows) / rows_of_step)
        self._report_training()

    @contextmanager
    def _without_reduction(self) -> Iterator[None]:
        """Ranks add up their own gradients; those of the whole step are reduced with its last micro-batch."""
        model = self.model_wrapped
        with model.no_sync() if hasattr(model, "no_sync") else nullcontext():
            yield


def fill_groups(groups: int, group_size: int, ranks: int) -> int:
    """Of a batch that fills a wait: about an eighth of a generation batch, and as many rows on each rank.

    A fresh batch that becomes ready meanwhile waits for it, so it is small.
    """
    unit = ranks // math.gcd(ranks, group_size)
    return unit * max(groups // FILL_PART // unit, 1)
