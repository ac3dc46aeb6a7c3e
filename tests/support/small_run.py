"""A small scheduler run in virtual time, for tests that look at one behavior."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from scheduler_runs import prompts, score_one

from swift_rlx.scheduler import IterableSource, RolloutConfig, RolloutScheduler
from swift_rlx.testing.fake_backend import FakeBackend, FakeScript
from swift_rlx.testing.virtual_clock import run_virtual


@dataclass
class Seen:
    """What a run left behind."""

    batches: list = field(default_factory=list)
    times: list = field(default_factory=list)
    ends: list = field(default_factory=list)
    scheduler: RolloutScheduler | None = None

    @property
    def stats(self):
        return self.scheduler.statistics()

    @property
    def indices(self):
        return [one.group.prompt.index for batch in self.batches for one in batch.groups]


def settings(**changes):
    """Two prompts a batch, one answer each, in the order of completion, without shaping."""
    defaults = {
        "batch_groups": 2,
        "group_size": 1,
        "min_members": 1,
        "max_staleness": 2,
        "max_inflight": 32,
        "shape_capacity": False,
    }
    return RolloutConfig(**{**defaults, **changes})


def train(
    config,
    backends=None,
    *,
    source=None,
    count=8,
    train_s=1.0,
    score=score_one,
    steps=None,
    seen=None,
    **options,
):
    """Train until the prompts have ended, or for `steps` steps; return what was seen, also in `seen` if it raises."""
    seen = seen or Seen()

    async def main():
        loop = asyncio.get_running_loop()
        workers = backends() if backends else [FakeBackend(script=FakeScript())]
        seen.scheduler = RolloutScheduler(
            config,
            workers,
            source or IterableSource(prompts(count)),
            score,
            **{"on_end": seen.ends.append} | options,
        )
        async with seen.scheduler as scheduler:
            while steps is None or len(seen.batches) < steps:
                batch = await scheduler.next_batch()
                if batch is None:
                    return
                seen.batches.append(batch)
                seen.times.append(loop.time())
                await asyncio.sleep(train_s)
                scheduler.publish(None)

    run_virtual(main())
    return seen
