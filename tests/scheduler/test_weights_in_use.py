"""Which weights are still needed while workers are slow to take them."""

from __future__ import annotations

import asyncio

from scheduler_runs import prompts, score_one
from small_run import settings

from swift_rlx.scheduler import IterableSource, RolloutScheduler
from swift_rlx.testing.fake_backend import FakeBackend, FakeScript
from swift_rlx.testing.virtual_clock import run_virtual


def test_live_applied_and_newest_weights_are_needed_and_nothing_between():
    seen = []

    async def main():
        backends = [FakeBackend(script=FakeScript(publish_s=10.0))]
        async with RolloutScheduler(settings(), backends, IterableSource(prompts(8)), score_one) as scheduler:

            def note():
                seen.append(sorted(version.step for version in scheduler.weights_in_use))

            note()
            for _ in range(3):
                scheduler.publish(None)
                await asyncio.sleep(1)
                note()
            await scheduler.published(scheduler.version)
            note()

    run_virtual(main())
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 3], [3]]
