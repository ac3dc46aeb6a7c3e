"""The one object that a run tells what happens: it keeps the timeline, the metrics and the summary.

    Monitor(run_directory)   completion, failed, scored, trained,
                             published, batch, scored_by                    from any thread, as things happen
                             window(statistics)                             once for each line of the log
                             progress(statistics)                           for the progress bar, as often as wanted
                             summary(statistics), close()                   at the end

Rank 0 has one. All times are seconds of `now`, by default of the system's monotonic clock, which the asyncio loop and
the worker processes of one machine share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from swift_rlx.monitors.meter import RolloutMeter
from swift_rlx.monitors.metrics_file import MetricsFile
from swift_rlx.monitors.progress import progress_line
from swift_rlx.monitors.records import Counters, Phase, RolloutPlan
from swift_rlx.monitors.reward_changes import RewardChanges
from swift_rlx.monitors.summary import ledger_line, summary_line
from swift_rlx.monitors.timeline import Timeline, Value
from swift_rlx.types import Completion, PolicyVersion, TrainBatch

TRAINER, REWARDS = "trainer", "rewards"
CURVES = ("rollout/inflight", "rollout/ready", "rollout/staleness_mean", "rollout/trainer_busy")


class Monitor:
    """Writes `timeline.json` and `metrics.jsonl` into `run_directory`, and sums up.

    `plan` is what the summary's advice is about. Raises `OSError` where the files cannot be made.
    """

    def __init__(
        self,
        run_directory: Path,
        now: Callable[[], float] = time.monotonic,
        *,
        plan: RolloutPlan | None = None,
        max_timeline_bytes: int = 96 << 20,
    ) -> None:
        self._now = now
        self._plan = plan or RolloutPlan()
        self._start_s = now()
        self._step = 0
        self._lock = threading.Lock()  # of the meter
        self._meter = RolloutMeter(self._start_s)
        self._rewards = RewardChanges()
        self._last: dict[str, float] = {}
        self._batch_details: dict[str, Value] = {}
        self._metrics = MetricsFile(run_directory / "metrics.jsonl")
        self._timeline = Timeline(
            run_directory / "timeline.json",
            start_s=self._start_s,
            started=datetime.now(timezone.utc),
            max_bytes=max_timeline_bytes,
        )

    def publishes_by(self, weight_update: str) -> None:
        """What publishing does to answers in flight, which the workers decide; the summary's advice is about it."""
        self._plan = replace(self._plan, weight_update=weight_update)

    def go_on_from(self, counters: Counters) -> None:
        """A resumed run starts with these counters."""
        with self._lock:
            self._meter.go_on_from(counters)

    def completion(self, completion: Completion, label: str = "answer") -> None:
        """An answer ended, whole or cut. `label` names it in the timeline."""
        with self._lock:
            self._meter.completion(completion)
        start_s = completion.start_s or completion.submit_s
        details = self._completion_details(completion)
        self._timeline.span(completion.worker, "answers", label, start_s, completion.finish_s, details)

    def failed(self, worker: str, start_s: float, finish_s: float, label: str) -> None:
        """An attempt ended without an answer."""
        self._timeline.span(worker, "failures", label, start_s, finish_s)

    def scored(self, name: str, start_s: float, finish_s: float, rows: int) -> None:
        """A reward scored `rows` completions."""
        self._timeline.span(REWARDS, name, f"score {rows}", start_s, finish_s, {"rows": rows})

    def trained(self, start_s: float, finish_s: float, step: int, phase: Phase = Phase.TRAIN) -> None:
        """The trainer's main thread did something for optimizer step `step`.

        `Phase.TRAIN` spans are forward, backward and optimizer; there may be several in a step.
        """
        with self._lock:
            self._step = max(self._step, step)
            self._meter.phase(phase, start_s, finish_s, step)
        details: dict[str, Value] = {"step": step}
        if phase is Phase.TRAIN:
            details |= self._batch_details
        self._timeline.span(TRAINER, TRAINER, f"{phase.value} {step}", start_s, finish_s, details)

    def published(self, version: PolicyVersion, start_s: float, finish_s: float, worker: str) -> None:
        """A worker loaded weights."""
        with self._lock:
            self._step = max(self._step, version.step)
            self._meter.applied(start_s, finish_s)
        self._timeline.span(worker, "weights", f"load {version}", start_s, finish_s)

    def batch(self, batch: TrainBatch) -> None:
        """The trainer picked up a generation batch."""
        with self._lock:
            self._step = max(self._step, batch.step)
            self._meter.batch(batch)
        steps = [one.completion.sampled_steps for group in batch.groups for one in group.group.members]
        oldest = max((batch.step - int(one[0]) for one in steps), default=0)
        self._batch_details = {"groups": len(batch.groups), "answers": len(steps), "oldest_token": oldest}

    def scored_by(self, step: int, versions: Mapping[str, str]) -> None:
        """Optimizer step `step` trains on scores of these versions of the rewards, by their names."""
        with self._lock:
            self._rewards.trained(step, versions)
        told = ", ".join(f"{name}={version}" for name, version in versions.items() if version)
        if told:
            self._batch_details["reward_versions"] = told

    def window(self, counters: Counters | None = None) -> dict[str, float]:
        """The metrics since the last call, for the log; also written to the files.

        `counters`: the scheduler's statistics now; without them the metrics that come from these are the last known.
        """
        now_s = self._now()
        with self._lock:
            if counters is not None:
                self._meter.count(counters)
            values = self._meter.values(now_s)
            self._meter.begin_window(now_s)
            self._last, step = values, self._step
        self._metrics.write(step, time.time(), values)
        for name in CURVES:
            if name in values:
                self._timeline.counter(TRAINER, name.split("/")[1], now_s, values[name])
        return values

    def progress(self, counters: Counters | None = None, width: int | None = None) -> str:
        """The line for the progress bar: rates of the last window, counters of now."""
        with self._lock:
            values = dict(self._last) or self._meter.values(self._now())
        if counters is not None:
            values |= {"rollout/inflight": counters.inflight, "rollout/ready": counters.ready}
        return progress_line(values, width)

    def summary(self, counters: Counters | None = None) -> str:
        """Lines for the end of the run: what limited it and what to change; what became of the tokens.

        And, where rewards were replaced while it ran, by which versions, and when.
        """
        with self._lock:
            if counters is not None:
                self._meter.count(counters)
            totals, replaced = self._meter.totals(), self._rewards.line()
        lines = [summary_line(totals, self._plan), ledger_line(totals.tokens)]
        return "\n".join(lines if replaced is None else [*lines, replaced])

    def close(self) -> None:
        """End the files. May be called twice; what is told later is ignored."""
        self._timeline.close()
        self._metrics.close()

    def _completion_details(self, completion: Completion) -> Mapping[str, Value]:
        start_s, steps = self._start_s, completion.sampled_steps
        details: dict[str, Value] = {
            "submit_s": round(completion.submit_s - start_s, 6),
            "start_s": round(completion.start_s - start_s, 6),
            "first_token_s": round(completion.first_token_s - start_s, 6),
            "finish_s": round(completion.finish_s - start_s, 6),
            "tokens": completion.num_tokens,
            "finish": completion.finish_reason.value,
            "worker": completion.worker,
        }
        if len(steps):
            oldest, newest = int(steps[0]), int(steps[-1])
            details["version_min"] = f"{completion.incarnation}.{oldest}"
            details["version_max"] = f"{completion.incarnation}.{newest}"
            details["staleness"] = self._step - oldest
        return details
