"""When nothing works any more: the run ends soon and with the reason, and never because of a single failure."""

from __future__ import annotations

import asyncio

import pytest
from scheduler_runs import prompts, score_one
from small_run import settings, train

from swift_rlx.errors import (
    BackendRejected,
    BackendUnavailable,
    RewardError,
    WorkerAbsent,
    WorkerDied,
    WorkerLost,
)
from swift_rlx.scheduler import IterableSource, RolloutScheduler
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript, Fault
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import Score


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


def test_workers_that_say_they_are_well_and_fail_each_request_end_the_run_too():
    def backends():
        scripts = [FakeScript(fault=lambda request: Fault(BackendUnavailable, after_s=0.5)) for _ in range(3)]
        return [FakeBackend(f"worker-{number}", script) for number, script in enumerate(scripts)]

    begin = r"no rollout worker has answered for 50 s; the last error: worker 'worker-\d': scripted fault"
    with pytest.raises(BackendUnavailable, match=begin):
        train(settings(retries=1000), backends, count=100)


def test_one_failure_never_ends_a_run_however_long_the_answer_after_it_takes():
    failed = []

    def fault(request):
        failed.append(request)
        return Fault(BackendUnavailable) if len(failed) < 4 else None

    script = FakeScript(ConstantLatency(250.0), fault=fault)
    seen = train(settings(outage_limit_s=20.0), lambda: [FakeBackend(script=script)], count=2)
    assert sorted(seen.indices) == [0, 1]
    assert seen.stats.failures == {"BackendUnavailable": 3}


def test_a_worker_that_is_being_started_is_waited_for_longer_than_an_outage_may_last():
    class Starting(FakeBackend):
        until_s = 200.0
        has_died = False

        async def generate(self, request, *watch):
            if not self.has_died:
                self.has_died = True
                raise WorkerDied("out of memory")
            return await super().generate(request, *watch)

        async def health(self):
            if self.has_died and asyncio.get_running_loop().time() < self.until_s:
                raise WorkerAbsent("is being started: it is building the engine")
            return await super().health()

    seen = train(settings(outage_limit_s=20.0), lambda: [Starting()], count=2)
    assert sorted(seen.indices) == [0, 1]
    assert seen.stats.failovers == 1
    assert seen.times[0] < 200 + 5


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


def test_a_permanent_fault_ends_the_run_with_its_words_instead_of_eating_the_data():
    class Refusing(FakeBackend):
        async def generate(self, request, *watch):
            if request.prompt.index >= 10:
                raise BackendRejected("the chat template has no turn for tools")
            return await super().generate(request, *watch)

    with pytest.raises(BackendUnavailable, match=r"32 prompts in a row were dropped: .* no turn for tools"):
        train(settings(), lambda: [Refusing()], count=500)


def test_so_does_a_reward_that_scores_nothing():
    async def score(prompt, completions):
        return [Score(None)] * len(completions)

    with pytest.raises(RewardError, match="32 prompts in a row were dropped: too few of their answers got"):
        train(settings(), score=score, count=500)
