"""When nothing works any more: the run ends soon and with the reason, and never because of a single failure."""

from __future__ import annotations

import asyncio

import pytest
from scheduler_runs import prompts, score_one
from small_run import settings, train

from swift_rlx.errors import (
    BackendUnavailable,
    WorkerDied,
    WorkerLost,
)
from swift_rlx.scheduler import IterableSource, RolloutScheduler
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript, Fault
from swift_rlx.testing.virtual_clock import run_virtual


def test_when_no_worker_is_left_the_run_ends_with_the_last_error():
    begin = {}

    def fault(request):
        begin.setdefault("at", asyncio.get_running_loop().time())
        return Fault(WorkerDied)

    async def main():
        script = FakeScript(
            fault=fault, health_fault=lambda: None if not begin else WorkerDied("no such process")
        )
        scheduler = RolloutScheduler(
            settings(outage_limit_s=30.0), [FakeBackend(script=script)], IterableSource(prompts(8)), score_one
        )
        message = r"no rollout worker has answered for \d+ s; the last error: no such process"
        with pytest.raises(BackendUnavailable, match=message):
            async with scheduler:
                await scheduler.next_batch()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(30.0, abs=0.1)


def test_one_failure_never_ends_a_run_however_long_the_answer_after_it_takes():
    failed = []

    def fault(request):
        failed.append(request)
        return Fault(BackendUnavailable) if len(failed) < 4 else None

    script = FakeScript(ConstantLatency(250.0), fault=fault)
    seen = train(settings(outage_limit_s=20.0), lambda: [FakeBackend(script=script)], count=2)
    assert sorted(seen.indices) == [0, 1]
    assert seen.stats.failures == {"BackendUnavailable": 3}


@pytest.mark.parametrize("workers", [1, 2])
def test_when_no_worker_will_be_started_again_the_run_ends_at_once_with_the_reason(workers):
    class Lost(FakeBackend):
        is_dead = False

        async def generate(self, request, *watch):
            self.is_dead = True
            raise WorkerDied("no card")

        async def health(self):
            if self.is_dead:
                raise WorkerLost("worker was started 5 times in a row without giving an answer: no card")
            return await super().health()

    async def main():
        backends = [Lost(f"worker-{number}") for number in range(workers)]
        with pytest.raises(
            BackendUnavailable, match=r"no rollout worker is left; .* 5 times in a row .* no card"
        ):
            async with RolloutScheduler(
                settings(), backends, IterableSource(prompts(8)), score_one
            ) as scheduler:
                await scheduler.next_batch()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) < 2
