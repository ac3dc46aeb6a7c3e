"""Which workers have to be there at the start of a run, and how the others come in."""

from __future__ import annotations

import asyncio

import pytest
from scheduler_runs import prompts, score_one
from small_run import settings, train

from swift_rlx.errors import WorkerDied
from swift_rlx.scheduler import IterableSource, RolloutScheduler
from swift_rlx.testing.fake_backend import FakeBackend, FakeScript
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import PolicyVersion


def test_a_worker_that_is_not_there_at_the_start_is_taken_in_when_it_comes():
    begin = PolicyVersion(0, 5)
    away = {"until": 3.0}

    def late(now):
        script = FakeScript(health_fault=lambda: WorkerDied("gone") if now() < away["until"] else None)
        return FakeBackend("worker-1", script, version=PolicyVersion(-1, 0))

    async def main():
        now = asyncio.get_running_loop().time
        workers = [FakeBackend("worker-0", version=begin), late(now)]
        async with RolloutScheduler(
            settings(), workers, IterableSource(prompts(40)), score_one, version=begin, payload="first"
        ) as scheduler:
            names = set()
            for _ in range(12):
                batch = await scheduler.next_batch()
                names |= {one.completion.worker for group in batch.groups for one in group.group.members}
                await asyncio.sleep(1.0)
                scheduler.publish(None)
            return names, scheduler.statistics()

    names, stats = run_virtual(main())
    assert names == {"worker-0", "worker-1"}
    assert stats.trained == 24


def test_where_no_worker_is_there_at_the_start_its_error_ends_the_run():
    script = FakeScript(health_fault=lambda: WorkerDied("no route to host"))
    with pytest.raises(WorkerDied, match="no route to host"):
        train(settings(), lambda: [FakeBackend(f"worker-{number}", script) for number in range(2)])


def test_a_worker_with_other_weights_beside_a_right_one_is_given_these():
    begin, published = PolicyVersion(0, 5), []

    class Noting(FakeBackend):
        async def publish(self, version, payload):
            published.append((self.name, version, payload))
            await super().publish(version, payload)

    async def main():
        workers = [Noting("worker-0", version=begin), Noting("worker-1", version=PolicyVersion(-1, 0))]
        async with RolloutScheduler(
            settings(), workers, IterableSource(prompts(9)), score_one, version=begin, payload="first"
        ):
            await asyncio.sleep(5.0)

    run_virtual(main())
    assert published == [("worker-1", begin, "first")]
