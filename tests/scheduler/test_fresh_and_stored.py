"""Steps on batches from a store between those on fresh ones: places, ages and the end of the prompts."""

from __future__ import annotations

import asyncio

import pytest
from scheduler_runs import prompts, score_one
from small_run import settings

from swift_rlx.scheduler import BatchSource, HybridSchedule, IterableSource, RolloutScheduler
from swift_rlx.scheduler.capacity import Capacity
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript
from swift_rlx.testing.virtual_clock import run_virtual


def at_steps(ratio, per_step=1, every=1):
    """Fresh batches at each optimizer step: `per_step` at every `every`-th, as far as the schedule has them fresh."""
    schedule = HybridSchedule(ratio)

    def fresh(step):
        if step % every:
            return 0
        numbers = range(step // every * per_step, (step // every + 1) * per_step)
        return sum(schedule.due(number) is BatchSource.FRESH for number in numbers)

    return fresh


def test_places_are_those_of_the_fresh_batches_within_the_bound():
    books = Capacity(
        settings(batch_groups=4, max_staleness=2, shape_capacity=False, fresh_batches=at_steps(0.5))
    )
    assert books.room() == 8  # steps 0 and 2 of 0, 1, 2
    for _ in range(8):
        books.admit()
    books.pick(4, step=0, unfinished=0, waited=False)
    books.live(1)
    assert books.room() == 0  # step 2 alone, for what is there
    books.live(2)
    assert books.room() == 4
    assert Capacity(settings(max_staleness=2, fresh_batches=lambda step: int(step == 5))).room() == 0


def test_a_batch_that_the_store_lacks_gets_places_at_once():
    config = settings(
        batch_groups=4, max_staleness=1, shape_capacity=False, max_batches=1, fresh_batches=at_steps(0.9)
    )
    books = Capacity(config)
    for _ in range(4):
        books.admit()
    books.pick(4, step=0, unfinished=0, waited=False)
    books.live(1)
    assert (books.room(), books.has_admitted_all) == (0, True)
    books.allow(1)
    assert (books.room(), books.has_admitted_all) == (4, False)


@pytest.mark.parametrize("ratio", [0.3, 0.5, 2 / 3, 0.9])
@pytest.mark.parametrize(("every", "per_step"), [(1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("bound", range(4))
def test_fresh_answers_keep_the_bound_and_none_is_made_twice(bound, every, per_step, ratio):
    """Every place is taken at once, and the steps on stored batches make what waits older."""
    fresh, total = at_steps(ratio, per_step, every), 12

    async def main():
        config = settings(
            max_staleness=bound,
            steps_per_batch=every,
            batches_per_step=per_step,
            fresh_batches=fresh,
            max_batches=sum(map(fresh, range(total))),
        )
        backend = FakeBackend(script=FakeScript(ConstantLatency(0.01), tokens_per_s=100.0))
        async with RolloutScheduler(config, [backend], IterableSource(prompts(99)), score_one) as scheduler:
            for step in range(total):
                for _ in range(fresh(step)):
                    batch = await scheduler.next_batch()
                    assert len(batch.groups) == config.batch_groups
                await asyncio.sleep(1.0)
                scheduler.publish(None)
            return config, scheduler.statistics()

    config, stats = run_virtual(main())
    assert stats.trained == config.max_batches * config.batch_groups
    assert stats.regenerated == 0
    assert max(stats.staleness) <= bound
