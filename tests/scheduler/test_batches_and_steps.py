"""Generation batches and optimizer steps that are not one to one, for every bound."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from scheduler_runs import prompts, random_plan, run_and_check, score_one
from small_run import settings

from swift_rlx.backends import WeightUpdate
from swift_rlx.errors import ConfigError, SchedulingError
from swift_rlx.scheduler import IterableSource, RolloutScheduler
from swift_rlx.scheduler.capacity import Capacity
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript
from swift_rlx.testing.virtual_clock import run_virtual

RATIOS = [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (1, 3), (1, 4)]


@pytest.mark.parametrize("bound", range(5))
@pytest.mark.parametrize(("steps_per_batch", "batches_per_step"), RATIOS)
def test_the_laws_hold_for_every_ratio_and_bound(steps_per_batch, batches_per_step, bound):
    for seed, every_step in ((1, True), (2, False), (3, True)):
        plan = random_plan(seed)
        config = replace(
            plan.config,
            steps_per_batch=steps_per_batch,
            batches_per_step=batches_per_step,
            max_staleness=bound,
        )
        plan = replace(plan, config=config, batches=7, publishes_every_step=every_step, permanent=0.0)
        run_and_check(replace(plan, config=replace(config, max_batches=config.max_batches and 7)))


@pytest.mark.parametrize("mode", [WeightUpdate.KEEP, WeightUpdate.PIN])
@pytest.mark.parametrize("bound", range(5))
@pytest.mark.parametrize(("steps_per_batch", "batches_per_step"), RATIOS)
def test_instant_answers_and_any_pace_never_grow_older_than_the_bound_allows(
    steps_per_batch, batches_per_step, bound, mode
):
    """Every place is taken at once, so each group waits as long as the arithmetic of places lets it."""
    steps_seen = set()

    async def main():
        config = settings(
            steps_per_batch=steps_per_batch,
            batches_per_step=batches_per_step,
            max_staleness=bound,
            weight_update=mode,
        )
        backend = FakeBackend(script=FakeScript(ConstantLatency(0.01), tokens_per_s=100.0), mode=mode)
        async with RolloutScheduler(config, [backend], IterableSource(prompts(60)), score_one) as scheduler:
            step = 0
            while True:
                for _ in range(batches_per_step if step % steps_per_batch == 0 else 0):
                    if (batch := await scheduler.next_batch()) is None:
                        return scheduler.statistics()
                    steps_seen.add(batch.step)
                await asyncio.sleep(1.0)
                scheduler.publish(None)
                step += 1

    stats = run_virtual(main())
    assert stats.trained == 60
    assert stats.regenerated == 0
    # The oldest ones are as old as whole batches fit into the bound: places are neither wasted nor too many.
    assert max(stats.staleness) == bound // steps_per_batch * steps_per_batch
    assert {step % steps_per_batch for step in steps_seen} == {0}


@pytest.mark.parametrize("bound", range(4))
@pytest.mark.parametrize(("accumulation", "per_batch"), [(3, 2), (5, 3), (5, 2), (2, 3), (3, 5), (2, 5)])
def test_ratios_that_are_not_whole_neither_block_nor_pass_the_bound(accumulation, per_batch, bound):
    """A step takes `accumulation` micro-batches, a generation batch lasts for `per_batch` of them."""

    async def main():
        config = settings(
            steps_per_batch=max(1, per_batch // accumulation),
            batches_per_step=max(1, -(-accumulation // per_batch)),
            max_staleness=bound,
        )
        async with RolloutScheduler(
            config, [FakeBackend()], IterableSource(prompts(40)), score_one
        ) as scheduler:
            micro = 0
            while True:
                if micro % per_batch == 0 and await scheduler.next_batch() is None:
                    return scheduler.statistics()
                await asyncio.sleep(0.3)
                micro += 1
                if micro % accumulation == 0:
                    scheduler.publish(None)

    stats = run_virtual(main())
    assert stats.trained == 40
    assert max(stats.staleness) <= bound


def test_at_staleness_0_all_batches_of_a_step_are_generated_at_once():
    books = Capacity(settings(max_staleness=0, batches_per_step=3, shape_capacity=True))
    assert books.room() == 6
    for _ in range(6):
        books.admit()
    for left in (2, 1, 0):
        assert books.picks_left(0) == left
        books.pick(2, step=0, unfinished=0, waited=False)
        assert books.room() == 0
    books.live(1)
    assert (books.room(), books.picks_left(1)) == (6, 2)


def test_weights_in_the_middle_of_a_batch_free_no_place():
    books = Capacity(settings(max_staleness=1, steps_per_batch=2))
    assert books.room() == 2
    for _ in range(2):
        books.admit()
    books.pick(2, step=0, unfinished=0, waited=False)
    books.live(1)
    assert books.room() == 0
    books.live(2)
    assert books.room() == 2


def test_a_trainer_that_never_publishes_is_told_so_instead_of_waiting_for_ever():
    async def main():
        config = settings(max_staleness=0, batches_per_step=2)
        async with RolloutScheduler(
            config, [FakeBackend()], IterableSource(prompts(20)), score_one
        ) as scheduler:
            for _ in range(3):
                await scheduler.next_batch()

    message = "another batch at optimizer step 0 without publishing weights: with batches_per_step 2"
    with pytest.raises(SchedulingError, match=message):
        run_virtual(main())


def test_only_one_of_the_two_ratios_may_exceed_one():
    with pytest.raises(ConfigError, match="steps_per_batch 2 with batches_per_step 3 is refused"):
        settings(steps_per_batch=2, batches_per_step=3)
