"""The fake backend: what it says about versions and tokens follows from its script and the clock."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from swift_rlx.backends import GenerationRequest, WeightUpdate
from swift_rlx.errors import BackendError, BackendUnavailable, WorkerDied
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript, Fault, LogNormalLatency
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import FinishReason, PolicyVersion, Prompt, SamplingParams

ONE_TOKEN_A_SECOND = FakeScript(ConstantLatency(6.0), tokens_per_s=1.0)


def request(index=0, member=0):
    prompt = Prompt(index, np.zeros(2, dtype=np.int32))
    return GenerationRequest(f"{index}/{member}", prompt, member, SamplingParams())


async def _publish_at(backend, times):
    begin = asyncio.get_running_loop().time()
    for step, when in enumerate(times, start=1):
        await asyncio.sleep(begin + when - asyncio.get_running_loop().time())
        await backend.publish(PolicyVersion(0, step), None)


def _answer_while_publishing(mode, times):
    async def main():
        backend = FakeBackend(script=ONE_TOKEN_A_SECOND, mode=mode)
        answer, _ = await asyncio.gather(backend.generate(request()), _publish_at(backend, times))
        return answer

    return run_virtual(main())


def test_under_keep_each_token_has_the_version_that_made_it():
    answer = _answer_while_publishing(WeightUpdate.KEEP, [2.0, 5.0])
    assert answer.policy_steps.tolist() == [0, 0, 1, 1, 1, 2]
    assert answer.fault() is None


def test_under_pin_all_tokens_have_the_first_version():
    assert _answer_while_publishing(WeightUpdate.PIN, [2.0, 5.0]).policy_steps.tolist() == [0] * 6


def test_weights_published_at_the_start_of_an_answer_make_its_first_token():
    assert _answer_while_publishing(WeightUpdate.KEEP, [0.0]).policy_steps.tolist() == [1] * 6


@pytest.mark.parametrize("mode", [WeightUpdate.DRAIN, WeightUpdate.ABORT])
def test_a_worker_that_can_only_drain_refuses_weights_with_answers_in_flight(mode):
    with pytest.raises(BackendError, match="'worker-0' has 1 answers in flight"):
        _answer_while_publishing(mode, [2.0])


def test_an_answer_that_is_aborted_has_the_tokens_made_so_far():
    async def main():
        backend = FakeBackend(script=ONE_TOKEN_A_SECOND)
        answer = asyncio.ensure_future(backend.generate(request()))
        await asyncio.sleep(2.5)
        await backend.abort(["0/0", "unknown"])
        return await answer, backend.generated_tokens

    answer, generated = run_virtual(main())
    assert (answer.finish_reason, answer.num_tokens, generated) == (FinishReason.ABORT, 2, 2)


def test_times_and_finish_reasons_are_told():
    async def main():
        backend = FakeBackend(script=FakeScript(ConstantLatency(6.0), tokens_per_s=1.0, max_tokens=4))
        await asyncio.sleep(10)
        return await backend.generate(request())

    answer = run_virtual(main())
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.num_tokens == 4
    assert (answer.start_s, answer.first_token_s, answer.finish_s) == pytest.approx((10, 11, 16))


def test_a_fault_says_what_it_lost():
    fault = Fault(WorkerDied, after_s=3.0)
    script = FakeScript(ConstantLatency(6.0), tokens_per_s=1.0, fault=lambda request: fault)

    async def main():
        await FakeBackend(script=script).generate(request())

    with pytest.raises(WorkerDied, match="scripted fault of 0/0") as caught:
        run_virtual(main())
    assert caught.value.lost_tokens == 3


def test_a_closed_worker_refuses_requests():
    async def main():
        backend = FakeBackend()
        await backend.close()
        await backend.generate(request())

    with pytest.raises(BackendUnavailable, match="'worker-0' is closed"):
        run_virtual(main())


def test_latencies_follow_the_prompt_and_not_the_order_of_asking():
    latency = LogNormalLatency(20.0, 1.0, seed=3)
    forward = [latency(request(index)) for index in range(2000)]
    assert forward == [latency(request(index)) for index in reversed(range(2000))][::-1]
    assert len(set(forward)) == 2000
    assert np.median(forward) == pytest.approx(20.0, rel=0.1)
    assert np.log(forward).std() == pytest.approx(1.0, rel=0.1)
    assert latency(request(0, member=1)) != forward[0]
