"""What the asynchronous pipeline shows: metrics in the log, a line at the progress bar, a timeline, a summary.

Rank 0 alone has a monitor, from the start of the pipeline to its end.
"""

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from swift.utils import get_logger
from transformers import TrainerCallback

from swift_rlx.errors import RlxError
from swift_rlx.monitors import COLUMNS, Monitor, Phase, RolloutPlan, version_columns
from swift_rlx.types import TrainBatch

logger = get_logger()


class _StepCallback(TrainerCallback):
    def __init__(self, trainer: "MonitoringMixin") -> None:
        self.trainer = trainer

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.report_optimizer_step()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.show_progress()


class MonitoringMixin:
    """Tells a monitor what the main thread does. To stand before AsyncRolloutMixin."""

    monitor: Monitor | None = None
    _train_begin_s = 0.0
    _columns: list[dict[str, Any]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._telling = threading.Lock()
        self._told: Monitor | None = None
        super().__init__(*args, **kwargs)
        self.add_callback(_StepCallback(self))

    def start_monitor(self, run_directory: Any, workers: int, max_inflight: int | None) -> Monitor:
        """The monitor of this start of the run; on rank 0, before the pipeline."""
        plan = RolloutPlan(workers, max_inflight, self.args.max_staleness)
        self.monitor = Monitor(run_directory, plan=plan)
        return self.monitor

    def _start_pipeline(self) -> None:
        super()._start_pipeline()
        if self.monitor is not None:
            mode = self.pipeline.weight_update.value
            logger.info(
                f"answers in flight when weights are published: {mode} (--weight_update {self.args.weight_update})"
            )
            self.monitor.publishes_by(mode)
            self.monitor.go_on_from(self.pipeline.thread.statistics())

    def _end_pipeline(self) -> None:
        pipeline, monitor, self.monitor = self.pipeline, self.monitor, None
        try:
            super()._end_pipeline()
        finally:
            if monitor is not None:
                monitor.close()
        if monitor is not None and pipeline is not None:
            self._tell(monitor, pipeline)

    def tell_summary(self) -> None:
        """Log the lines of the end now, from any thread; not again then. Nothing where no pipeline runs."""
        monitor, pipeline = self.monitor, self.pipeline
        if monitor is not None and pipeline is not None:
            with contextlib.suppress(RlxError):  # the pipeline ends at this moment, which tells the lines
                self._tell(monitor, pipeline)

    def _tell(self, monitor: Monitor, pipeline: Any) -> None:
        with self._telling:
            if self._told is monitor:
                return
            lines = monitor.summary(pipeline.thread.statistics()).splitlines()
            self._told = monitor
            for line in lines:
                logger.info(line)

    # --- what the main thread does -------------------------------------------------------------------------------

    @contextmanager
    def _phase(self, phase: Phase, step: int | None = None) -> Iterator[None]:
        begin_s, step = time.monotonic(), self.state.global_step if step is None else step
        yield
        if self.monitor is not None:
            self.monitor.trained(begin_s, time.monotonic(), step, phase)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        self._train_begin_s = time.monotonic()
        return super().compute_loss(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        self._report_training()
        return loss

    def report_optimizer_step(self) -> None:
        """Clipping and the optimizer's step are done; wait for the device, so that it is seen where it works."""
        if self.monitor is None:
            return
        if (device := self.accelerator.device).type != "cpu":
            getattr(torch, device.type).synchronize(device)
        self._report_training()

    def _report_training(self) -> None:
        """From the begin of the loss, or the last report, to now."""
        now_s = time.monotonic()
        if self.monitor is not None:
            self.monitor.trained(self._train_begin_s, now_s, self.state.global_step + 1)
        self._train_begin_s = now_s

    def _rollout_samples(self, inputs: Any) -> list[Any]:
        if not self._takes_from_pipeline:
            return super()._rollout_samples(inputs)
        with self._phase(Phase.WAIT, self.state.global_step + 1):
            return super()._rollout_samples(inputs)

    def note_versions(self, versions: Mapping[str, str]) -> None:
        super().note_versions(versions)
        if self.monitor is not None:
            self.monitor.scored_by(self.state.global_step + 1, self.reward_versions)

    def publish_weights(self) -> None:
        with self._phase(Phase.PUBLISH):
            super().publish_weights()

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with self._phase(Phase.EVALUATE):
            return super().evaluate(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        with self._phase(Phase.SAVE):
            return super()._save_checkpoint(*args, **kwargs)

    # --- what is shown -------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.monitor is not None and self.pipeline is not None and "loss" in logs:
            logs.update(self.monitor.window(self.pipeline.thread.statistics()))
            if not sys.stderr.isatty():
                logger.info(self.monitor.progress())
        super().log(logs, *args, **kwargs)

    def show_progress(self) -> None:
        """At the right end of ms-swift's progress bar, where there is a terminal."""
        if self.monitor is None or self.pipeline is None or not sys.stderr.isatty():
            return
        for callback in self.callback_handler.callbacks:
            if (bar := getattr(callback, "training_bar", None)) is not None:
                bar.set_postfix_str(self.monitor.progress(self.pipeline.thread.statistics()), refresh=False)

    def record_batch(self, batch: TrainBatch, groups: int, group_size: int) -> None:
        """A batch was picked up, on rank 0; its rows are filled to `groups` x `group_size` as the trainer's are."""
        self.monitor.batch(batch)
        rows = [version_columns(group, batch.step) for group in batch.groups]
        rows = [row + row[:1] * (group_size - len(row)) for row in rows]
        rows += rows[:1] * (groups - len(rows))
        self._columns = [cell for row in rows for cell in row]

    def _log_rollout(self, samples: list[Any]) -> None:
        """Also who made the answers; evaluation has none of it: it generates by itself, on the current weights."""
        super()._log_rollout(samples)
        if not (self.args.async_rollout and self.log_completions and self.accelerator.is_main_process):
            return
        count = len(samples) * self.accelerator.num_processes
        rows = self._columns if self.model.training else [dict.fromkeys(COLUMNS)] * count
        for name in COLUMNS:
            kept = self._logs.setdefault(name, deque(maxlen=self.args.generation_batch_size))
            kept.extend(row[name] for row in rows)
