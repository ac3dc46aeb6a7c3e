"""Evaluation: every row once, on the current weights, without a trace in the training that goes on afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class EvaluationMixin:
    """Stock drops the rows of the last incomplete batch, or counts repeated ones; here each row counts once."""

    _eval_rows_left = 0

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        # ms-swift sets drop_last for training, where groups must be whole; in evaluation it would drop prompts.
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            return super().get_eval_dataloader(*args, **kwargs)
        finally:
            self.args.dataloader_drop_last = drop_last

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        self._eval_rows_left = len(dataloader.dataset) * self.num_generations_eval
        with self._own_random_numbers():
            output = super().evaluation_loop(dataloader, *args, **kwargs)
        self.close_eval_metrics()
        return output

    def eval_rows_once(self, num_rows: int) -> torch.Tensor:
        """[num_rows] bool, False for the rows that only fill up the last batch of several ranks."""
        if self.model.training:
            return torch.ones(num_rows, dtype=torch.bool)
        fresh = torch.arange(num_rows) < self._eval_rows_left
        self._eval_rows_left -= num_rows
        return fresh

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        """Evaluations draw the same random numbers each time and leave the training's sequence alone."""
        devices = [self.accelerator.device] if self.accelerator.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.args.seed + self.accelerator.process_index)
            yield
