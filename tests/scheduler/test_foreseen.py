"""What the next batch will be is known once enough groups are ready, and is what is picked up if nothing else comes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import scheduler_runs
from scheduler_runs import prompts, random_plan, run_and_check, score_one
from small_run import settings

from swift_rlx.scheduler import IterableSource, RolloutConfig, RolloutScheduler
from swift_rlx.scheduler.capacity import Capacity
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript
from swift_rlx.testing.virtual_clock import run_virtual


def orders(groups):
    return [group.order for group in groups]


def test_whatever_is_foreseen_when_the_trainer_asks_is_the_batch(monkeypatch):
    """Unless it has to wait: for groups that are made again, or because too few are ready."""
    seen = {True: 0, False: 0}

    async def next_and_check(scheduler, filler):
        if filler is not None:
            filler.has_stored = True
        expected = orders(scheduler.foreseen())
        batch = await scheduler.next_batch(filler)
        if batch is not None and batch.groups and batch.waited_s == 0:
            seen[bool(expected)] += 1
            assert expected in ([], orders(one.group for one in batch.groups))
        return batch

    monkeypatch.setattr(scheduler_runs, "_next", next_and_check)
    for seed in range(40):
        run_and_check(replace(random_plan(seed), train_s=10.0))
    assert seen[True] > 40
    assert seen[False] < seen[True] / 10, "only groups over age hide the next batch"


def test_while_the_trainer_trains_the_next_batch_is_known():
    async def main():
        config = settings(batch_groups=2, group_size=2, max_staleness=2)
        backend = FakeBackend(script=FakeScript(latency=ConstantLatency(0.1)))
        scheduler = RolloutScheduler(config, [backend], IterableSource(prompts(12)), score_one)
        foreseen = []
        async with scheduler:
            assert scheduler.foreseen() == []
            while (batch := await scheduler.next_batch()) is not None:
                if foreseen:
                    assert orders(one.group for one in batch.groups) == foreseen[-1]
                await asyncio.sleep(5.0)
                foreseen.append(orders(scheduler.foreseen()))
                scheduler.publish(None)
        return foreseen

    foreseen = run_virtual(main())
    assert [len(one) for one in foreseen] == [2, 2, 2, 2, 2, 0]


@pytest.mark.parametrize(
    ("steps_per_batch", "batches_per_step", "picks", "step", "expected"),
    [
        (1, 1, [], 4, (4, 0)),
        (1, 1, [4], 4, (5, 0)),
        (1, 1, [4], 5, (5, 0)),
        (3, 1, [3], 4, (6, 0)),
        (1, 3, [4], 4, (4, 1)),
        (1, 3, [4, 4, 4], 4, (5, 2)),
    ],
)
def test_the_step_of_the_next_pick_up(steps_per_batch, batches_per_step, picks, step, expected):
    config = RolloutConfig(
        batch_groups=1, steps_per_batch=steps_per_batch, batches_per_step=batches_per_step, max_staleness=6
    )
    books = Capacity(config, 3)
    for when in picks:
        books.pick(1, when, unfinished=0, waited=False)
    assert books.next_pick(step) == expected
