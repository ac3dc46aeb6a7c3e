"""Faults of workers, requests and scorers: recovery without loss, or the error itself, soon."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scheduler_runs import prompts, score_one
from small_run import settings, train

from swift_rlx.errors import (
    BackendRejected,
    BackendUnavailable,
    RewardError,
    SchedulingError,
    StalenessError,
    WorkerDied,
)
from swift_rlx.scheduler import GroupOutcome, IterableSource, RolloutScheduler
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript, Fault
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import DropReason, Fate, PolicyVersion, Score


def two_workers(fault, **script):
    def backends():
        return [FakeBackend("worker-0", FakeScript(fault=fault, **script)), FakeBackend("worker-1")]

    return backends


def one_worker(fault, **script):
    return lambda: [FakeBackend(script=FakeScript(fault=fault, **script))]


def test_a_request_that_fails_once_is_tried_on_another_worker():
    seeds = Counter()

    def fault(request):
        seeds[request.sampling.seed] += 1
        return Fault(BackendUnavailable) if request.prompt.index == 0 else None

    seen = train(settings(), two_workers(fault), count=8)
    assert sorted(seen.indices) == list(range(8))
    assert seen.stats.retries == 1
    members = [one.group.members[0] for batch in seen.batches for one in batch.groups]
    assert next(one for one in members if one.prompt.index == 0).attempts == 2
    assert set(seeds.values()) == {1}


def test_a_member_that_fails_for_good_leaves_its_group_with_the_others():
    def fault(request):
        return Fault(BackendRejected) if (request.prompt.index, request.member) == (1, 2) else None

    seen = train(settings(group_size=3, min_members=2), one_worker(fault))
    members = {
        one.group.prompt.index: len(one.group.members) for batch in seen.batches for one in batch.groups
    }
    assert members == {index: 2 if index == 1 else 3 for index in range(8)}


def test_a_group_with_too_few_answers_is_dropped_and_counted_and_the_rest_goes_on():
    def fault(request):
        return Fault(BackendRejected) if request.prompt.index == 1 and request.member else None

    seen = train(settings(group_size=3, min_members=2), one_worker(fault))
    assert seen.stats.dropped == {DropReason.TOO_FEW_ANSWERS: 1}
    assert sorted(seen.indices) == [0, 2, 3, 4, 5, 6, 7]
    assert [end.group.prompt.index for end in seen.ends if end.outcome is GroupOutcome.DROPPED] == [1]


def test_the_answers_of_a_group_without_hope_are_ended():
    def fault(request):
        return Fault(BackendRejected, after_s=1.0) if request.member == 0 else None

    latency = ConstantLatency(100.0)
    seen = train(settings(group_size=2, min_members=2), one_worker(fault, latency=latency), count=2)
    assert seen.stats.tokens[Fate.CUT] == 20  # 1 s of 2 answers
    assert seen.stats.dropped == {DropReason.TOO_FEW_ANSWERS: 2}


def test_an_answer_with_miscounted_log_probs_is_dropped_and_counted():
    class Miscounting(FakeBackend):
        async def generate(self, request, *watch):
            answer = await super().generate(request, *watch)
            if request.member == 0:
                answer = replace(answer, logprobs=np.zeros(answer.num_tokens + 1, dtype=np.float32))
            return answer

    seen = train(settings(group_size=3, min_members=2), lambda: [Miscounting()])
    assert {one.group.failed for batch in seen.batches for one in batch.groups} == {1}
    assert seen.stats.failures == {"BackendRejected": 8}


def test_groups_with_too_few_scores_are_dropped_and_counted():
    async def score(prompt, completions):
        return [Score(None if prompt.index == 3 else 1.0)] * len(completions)

    seen = train(settings(group_size=2, min_members=2), score=score)
    assert seen.stats.dropped == {DropReason.TOO_FEW_SCORED: 1}
    assert 3 not in seen.indices


@pytest.mark.parametrize("deaf", [False, True])
def test_a_request_that_hangs_moves_on_after_its_time_limit(deaf):
    def fault(request):
        return Fault(None, deaf=deaf) if request.prompt.index == 0 else None

    seen = train(
        settings(request_timeout_s=20.0, abort_grace_s=5.0, max_staleness=50), two_workers(fault), count=8
    )
    assert sorted(seen.indices) == list(range(8))
    assert seen.stats.failures == {"BackendTimeout": 1}
    assert seen.times[-1] < 20 + 5 + 3


def test_a_worker_that_fails_fast_does_not_attract_requests():
    sent = Counter()

    class Counting(FakeBackend):
        async def generate(self, request, *watch):
            sent[self.name] += 1
            return await super().generate(request, *watch)

    def backends():
        dead = FakeScript(fault=lambda request: Fault(BackendUnavailable, after_s=0.005))
        return [Counting("worker-0", dead), *(Counting(f"worker-{number}") for number in (1, 2, 3))]

    config = settings(batch_groups=16, max_inflight=16)
    seen = train(config, backends, count=1600)
    assert seen.stats.trained == 1600
    assert sent["worker-0"] < 0.05 * sent.total()
    assert not seen.stats.dropped


def test_a_worker_that_comes_back_gets_the_current_weights_before_any_request():
    is_gone = [False]
    died = {"time": 5.0}

    class Mortal(FakeBackend):
        async def generate(self, request, *watch):
            if is_gone[0]:
                raise WorkerDied("gone")
            return await super().generate(request, *watch)

        async def publish(self, version, payload):
            if is_gone[0]:
                raise WorkerDied("gone")
            await super().publish(version, payload)

        async def health(self):
            if is_gone[0]:
                raise WorkerDied("gone")
            return await super().health()

    async def main():
        mortal, other = Mortal("worker-0"), FakeBackend("worker-1")
        loop = asyncio.get_running_loop()
        loop.call_later(died["time"], lambda: is_gone.__setitem__(0, True))
        loop.call_later(20.0, lambda: is_gone.__setitem__(0, False))
        versions = []
        source = IterableSource(prompts(200))
        async with RolloutScheduler(
            settings(max_inflight=2), [mortal, other], source, score_one
        ) as scheduler:
            while (batch := await scheduler.next_batch()) is not None:
                versions += [
                    (member.completion.worker, int(member.completion.policy_steps[0]), batch.step)
                    for one in batch.groups
                    for member in one.group.members
                ]
                await asyncio.sleep(1.0)
                scheduler.publish(None)
            return versions, mortal, scheduler.statistics()

    versions, mortal, stats = run_virtual(main())
    assert stats.trained == 200
    assert stats.failovers >= 1
    gaps = np.diff([version.step for version in mortal.published])
    assert gaps.max() > 5  # it missed the weights of its absence
    assert gaps.min() >= 1
    assert sum(name == "worker-0" for name, _, _ in versions) > 20
    assert all(step - first <= 2 for _, first, step in versions)


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

    assert 30 <= run_virtual(main()) <= 60


def test_an_error_of_the_scorer_reaches_the_trainer_at_once():
    async def score(prompt, completions):
        if prompt.index == 1:
            raise KeyError("solution")
        return [Score(1.0)]

    with pytest.raises(KeyError, match="solution"):
        train(settings(), score=score)


def test_a_scorer_with_the_wrong_number_of_scores_is_an_error():
    async def score(prompt, completions):
        return [Score(1.0)]

    with pytest.raises(RewardError, match=r"returned 1 scores for 3 completions of prompt \(0, \d\)"):
        train(settings(group_size=3), score=score)


def test_a_foreign_error_of_a_backend_is_a_fault_of_that_worker():
    class Odd(FakeBackend):
        async def generate(self, request, *watch):
            raise RuntimeError("CUDA error")

    seen = train(settings(), lambda: [Odd("worker-0"), FakeBackend("worker-1")])
    assert sorted(seen.indices) == list(range(8))
    assert seen.stats.failures["BackendUnavailable"] >= 3


def test_a_worker_that_aborts_by_itself_has_failed():
    class Aborting(FakeBackend):
        async def generate(self, request, *watch):
            asyncio.get_running_loop().call_later(0.5, self._answers_end)
            return await super().generate(request, *watch)

        def _answers_end(self):
            for answer in list(self._answers.values()):
                answer.end(aborted=True)

    seen = train(settings(), lambda: [Aborting("worker-0"), FakeBackend("worker-1")])
    assert sorted(seen.indices) == list(range(8))
    assert seen.stats.failures["BackendUnavailable"] >= 3


def test_a_worker_that_ignores_new_weights_stops_the_run():
    class Deceiving(FakeBackend):
        async def publish(self, version, payload):
            self.published.append(version)

    with pytest.raises(
        StalenessError, match=r"answered with weights of steps 0 to 0 .* it acknowledged 0\.\d"
    ):
        train(settings(), lambda: [Deceiving()], count=40)


def test_a_worker_that_fails_at_publishing_is_put_aside_until_it_has_the_weights():
    class Stumbling(FakeBackend):
        tries = 0

        async def publish(self, version, payload):
            self.tries += 1
            if self.tries == 2:
                raise BackendUnavailable("out of shared memory")
            await super().publish(version, payload)

    seen = train(settings(), lambda: [Stumbling("worker-0"), FakeBackend("worker-1")], count=40)
    assert seen.stats.trained == 40
    assert seen.stats.failovers == 1


@pytest.mark.parametrize("name", ["generate_loop", "score_loop", "publish_loop"])
def test_a_loop_that_just_ends_is_an_error(name, monkeypatch):
    async def ends(*parts):
        return None

    monkeypatch.setattr(f"swift_rlx.scheduler.scheduler.{name}", ends)
    with pytest.raises(SchedulingError, match="loop ended before the run did"):
        train(settings())


def test_an_error_while_the_trainer_waits_for_its_weights_reaches_it():
    async def score(prompt, completions):
        await asyncio.sleep(5.0)
        raise KeyError("solution")

    async def main():
        backend = FakeBackend(script=FakeScript(publish_s=100.0))
        async with RolloutScheduler(settings(), [backend], IterableSource(prompts(4)), score) as scheduler:
            await scheduler.published(scheduler.publish(None))

    with pytest.raises(KeyError, match="solution"):
        run_virtual(main())


def test_versions_of_another_incarnation_stop_the_run():
    class Old(FakeBackend):
        async def generate(self, request, *watch):
            return replace(await super().generate(request, *watch), incarnation=0)

    begin = PolicyVersion(1, 3)
    with pytest.raises(StalenessError, match=r"of incarnation 0, but it acknowledged 1\.3"):
        train(settings(), lambda: [Old(version=begin)], version=begin)
