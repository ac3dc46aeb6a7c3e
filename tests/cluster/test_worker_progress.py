"""Real worker processes with the fake engine: what they tell of their answers, and that silence is noticed."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest
from worker_runs import request, run, until, weights, worker

from swift_rlx.backends.progress import joined, sampled_part, shared_tokens
from swift_rlx.cluster import hosted_process
from swift_rlx.cluster.messages import Progress
from swift_rlx.errors import WorkerAbsent, WorkerDied
from swift_rlx.testing.fake_engine import FakeEngine
from swift_rlx.types import PolicyVersion


def test_tokens_are_told_as_they_come_in_one_message_for_all_answers(tmp_path):
    one, messages = worker(tmp_path, token_s=0.01), []

    async def body():
        take = one._process._take
        one._process._take = lambda message: (messages.append(message), take(message))[1]
        told = [[] for _ in range(3)]
        asked = [request(1, number, max_tokens=80) for number in range(3)]
        answers = await asyncio.gather(
            *(one.generate(each, chunks.append) for each, chunks in zip(asked, told, strict=True))
        )
        for answer, chunks in zip(answers, told, strict=True):
            whole = joined(chunks)
            assert 0 < whole.num_tokens < answer.num_tokens
            assert shared_tokens(whole, sampled_part(answer)) == whole.num_tokens
        reports = [message for message in messages if isinstance(message, Progress)]
        assert len(reports) == max(len(chunks) for chunks in told)
        assert len(reports[0].answers) == 3

    run(one, body)


def test_what_was_told_before_a_death_goes_on_elsewhere_as_if_nothing_had_happened(tmp_path):
    one = worker(tmp_path, token_s=0.01, crash_token=3, fault_after=60)

    async def body():
        told = []
        with pytest.raises(WorkerDied, match="SIGKILL"):
            await one.generate(request(3, max_tokens=100), told.append)
        prefix = joined(told)
        assert 0 < prefix.num_tokens < 60
        engine = FakeEngine(replace(one._launch.spec, options={}))
        answer = await engine.generate(replace(request(3, max_tokens=100), prefix=prefix))
        undisturbed = await engine.generate(request(3, max_tokens=100))
        assert shared_tokens(sampled_part(answer), sampled_part(undisturbed)) == 100

    run(one, body)


@pytest.mark.slow
def test_an_engine_that_makes_no_token_of_its_answers_takes_its_worker_with_it(tmp_path):
    one = worker(tmp_path, token_s=0.02, stall_limit_s=1.0, stall_token=5)

    async def body():
        await one.generate(request(1, 1, max_tokens=120))  # longer than the limit, and not silent
        await asyncio.sleep(1.5)  # without a request there is nothing to say
        with pytest.raises(WorkerDied, match="the engine made no token of 1 answers for 1 s"):
            await asyncio.wait_for(one.generate(request(5, 2)), 5)

    run(one, body)


@pytest.mark.slow
def test_a_worker_that_is_stopped_is_noticed_by_its_silence(tmp_path):
    one = worker(tmp_path, hang_token=5, silence_limit_s=0.8)

    async def body():
        await asyncio.sleep(1.0)  # longer than the limit: signs of life do come
        with pytest.raises(WorkerDied, match=r"gave no sign of life for 0\.8 s and was killed"):
            await asyncio.wait_for(one.generate(request(5)), 4)

    run(one, body)


@pytest.mark.slow
def test_one_that_a_signal_has_stopped_is_noticed_sooner_than_one_that_is_only_silent(tmp_path, monkeypatch):
    monkeypatch.setattr(hosted_process, "STOPPED_S", 0.8)
    one = worker(tmp_path, hang_token=5)

    async def body():
        with pytest.raises(WorkerDied, match=r"was stopped for 0\.8 s and was killed"):
            await asyncio.wait_for(one.generate(request(5)), 5)

    run(one, body)


@pytest.mark.slow
def test_an_engine_that_does_not_say_how_it_is_takes_its_worker_with_it(tmp_path):
    one = worker(tmp_path, token_s=0.05, stall_limit_s=1.0, deaf=True)

    async def body():
        with pytest.raises(WorkerDied, match="the engine did not say for 1 s how it is"):
            await asyncio.wait_for(one.generate(request(1, 1, max_tokens=190)), 5)

    run(one, body)


@pytest.mark.slow
def test_an_engine_that_does_not_come_to_an_end_with_new_weights_takes_its_worker_with_it(tmp_path):
    files = weights(tmp_path, 1)
    one = worker(tmp_path, stall_limit_s=1.8, publish_s=60.0)

    async def body():
        with pytest.raises(WorkerDied, match=r"the engine did not take weights 0\.1 in 1 s"):
            await asyncio.wait_for(one.publish(PolicyVersion(0, 1), files), 5)

    run(one, body)


@pytest.mark.slow
def test_an_engine_that_falls_silent_after_some_words_is_ended_before_its_limit(tmp_path):
    one = worker(tmp_path, token_s=0.02, stall_limit_s=60.0, stall_token=5)
    one._launch = replace(one._launch, stall_floor_s=4.0)

    async def body():
        await one.generate(request(1, 1, max_tokens=100))
        with pytest.raises(WorkerDied, match=r"the engine made no token of 1 answers for \d"):
            await asyncio.wait_for(one.generate(request(5, 2)), 30)
        await until(lambda: not one._process.is_alive)
        with contextlib.suppress(WorkerAbsent):
            await one.health()
        await one.start()
        assert one._launch.stall_floor_s == 8.0, "the next one is given more"

    run(one, body)
