"""A trainer that finds its samples too far off has those in stock made again, by the weights of now."""

from __future__ import annotations

import asyncio

from scheduler_runs import prompts, score_one
from small_run import settings

from swift_rlx.scheduler import GroupOutcome, IterableSource, RolloutScheduler
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import Fate


def run(refresh_at, *, train_s=4.0, steps=8, **changes):
    """Staleness at each pick-up, oldest token first, of groups that are made long before; what `refresh` returned."""
    ages, refreshed, ends = [], [], []

    async def main():
        script = FakeScript(latency=ConstantLatency(1.0))
        config = settings(max_staleness=3, max_batches=steps, **changes)
        scheduler = RolloutScheduler(
            config, [FakeBackend(script=script)], IterableSource(prompts(2 * steps)), score_one,
            on_end=ends.append,
        )  # fmt: skip
        async with scheduler:
            while (batch := await scheduler.next_batch()) is not None:
                made = [int(one.group.members[0].completion.policy_steps[0]) for one in batch.groups]
                ages.append(batch.step - min(made))
                if batch.step == refresh_at:
                    refreshed.append(scheduler.refresh())
                await asyncio.sleep(train_s)
                scheduler.publish(None)
        return scheduler.statistics()

    return ages, refreshed, ends, run_virtual(main())


def test_what_is_ready_and_older_than_the_trainer_is_made_again():
    ages, _, _, _ = run(refresh_at=None)
    assert ages[4:7] == [3, 3, 3], "without it they come as old as the bound allows"

    ages, refreshed, ends, stats = run(refresh_at=3)
    assert refreshed == [4], "two more were asked for under the trainer's weights"
    assert ages[:4] == [0, 1, 2, 3]
    assert ages[4:7] == [1, 2, 3], "made by the weights of step 3 at the earliest"
    assert max(ages) <= 3
    assert stats.regenerated == 4
    again = [end for end in ends if end.outcome is GroupOutcome.OVER_AGE]
    assert len(again) == 4
    assert stats.tokens[Fate.OVER_AGE] == sum(
        member.completion.num_tokens for end in again for member in end.group.members
    )
    assert stats.trained == stats.admitted == 16, "no prompt is lost"


def test_what_the_trainers_weights_made_stays():
    _, refreshed, _, stats = run(refresh_at=0)
    assert refreshed == [0]
    assert stats.regenerated == 0
    assert stats.trained == 16
