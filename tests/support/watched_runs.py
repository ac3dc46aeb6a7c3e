"""Simulated runs of the real scheduler, watched by a monitor."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swift_rlx.backends import WeightUpdate
from swift_rlx.clock import LoopClock
from swift_rlx.monitors import Monitor, Phase, RolloutPlan, WatchedBackend
from swift_rlx.scheduler import IterableSource, RolloutConfig, RolloutScheduler, Statistics
from swift_rlx.testing.fake_backend import FakeBackend, FakeScript, LogNormalLatency
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import Prompt, Score


@dataclass(frozen=True)
class Watched:
    """Seconds of one step's work; latencies are log-normal."""

    train_s: float = 1.0
    generate_s: float = 1.6
    sigma: float = 0.3
    score_s: float = 0.0
    export_s: float = 0.0
    evaluate_s: float = 0.0
    between_s: float = 0.0
    workers: int = 1
    max_inflight: int = 32
    max_staleness: int = 2
    mode: WeightUpdate = WeightUpdate.KEEP
    steps: int = 30


@dataclass
class Result:
    """What the monitor said."""

    monitor: Monitor
    lines: list[dict[str, float]]
    summary: str
    statistics: Statistics


def watch(run: Watched, folder: Path) -> Result:
    """Train in virtual time; the monitor is closed."""
    return run_virtual(_watch(run, folder))


async def _watch(run: Watched, folder: Path) -> Result:
    clock = LoopClock()
    plan = RolloutPlan(run.workers, run.max_inflight, run.max_staleness, run.mode.value)
    monitor = Monitor(folder, clock.now, plan=plan)
    config = RolloutConfig(
        batch_groups=8,
        group_size=4,
        max_staleness=run.max_staleness,
        max_inflight=run.max_inflight,
        weight_update=run.mode,
        request_timeout_s=1e9,
        publish_limit_s=1e9,
        warm_up_limit_s=1e9,
    )
    script = FakeScript(LogNormalLatency(run.generate_s, run.sigma), publish_s=0.01)
    backends = [
        WatchedBackend(FakeBackend(f"worker-{at}", script, mode=run.mode), monitor, clock.now)
        for at in range(run.workers)
    ]
    prompts = IterableSource(Prompt(at, np.zeros(1, np.int32)) for at in itertools.count())

    async def score(prompt, completions):
        begin_s = clock.now()
        await clock.sleep(run.score_s)
        monitor.scored("accuracy", begin_s, clock.now(), len(completions))
        return [Score(1.0)] * len(completions)

    async def phase(kind, seconds, step):
        begin_s = clock.now()
        await clock.sleep(seconds)
        monitor.trained(begin_s, clock.now(), step, kind)

    lines = []
    async with RolloutScheduler(config, backends, prompts, score) as scheduler:
        for step in range(1, run.steps + 1):
            begin_s = clock.now()
            batch = await scheduler.next_batch()
            monitor.trained(begin_s, clock.now(), step, Phase.WAIT)
            monitor.batch(batch)
            await phase(Phase.TRAIN, run.train_s, step)
            await phase(Phase.PUBLISH, run.export_s, step)
            scheduler.publish(None)
            await phase(Phase.EVALUATE, run.evaluate_s, step)
            await clock.sleep(run.between_s)
            if step % 5 == 0:
                lines.append(monitor.window(scheduler.statistics()))
        summary = monitor.summary(scheduler.statistics())
    monitor.close()
    return Result(monitor, lines, summary, scheduler.statistics())
