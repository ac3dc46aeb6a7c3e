"""Real worker processes with the fake engine: what they answer, and what happens when they cannot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
from worker_runs import PROBE_IDS, end_of, request, run, until, weights, worker

from swift_rlx.cluster import worker_process
from swift_rlx.errors import (
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
    ConfigError,
    WeightMismatch,
    WorkerAbsent,
    WorkerDied,
    WorkerLost,
)
from swift_rlx.testing.fake_engine import FakeEngine
from swift_rlx.types import FinishReason, PolicyVersion

V1, V2 = PolicyVersion(0, 1), PolicyVersion(0, 2)


async def serving(one):
    """Its health, as soon as it has some."""
    while True:
        try:
            return await one.health()
        except WorkerLost:
            raise
        except WorkerAbsent:
            await asyncio.sleep(0.02)


def test_a_worker_answers_as_its_engine_does_and_publishes(tmp_path):
    first, second, wrong = weights(tmp_path, 1), weights(tmp_path, 2), weights(tmp_path, 3, probe_of=4)
    one = worker(tmp_path, bug_token=6, busy_token=7)

    async def body():
        engine = FakeEngine(one._launch.spec)
        answers = await asyncio.gather(*(one.generate(request(1, number)) for number in range(20)))
        for number, answer in enumerate(answers):
            expected = await engine.generate(request(1, number))
            np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
            np.testing.assert_array_equal(answer.logprobs, expected.logprobs)
            assert answer.worker == "worker-0"
        assert one.capabilities.keep
        assert (await one.health()).version == PolicyVersion()

        with pytest.raises(BackendRejected, match=r"worker 'worker-0': token ids \[99, 2\] are refused"):
            await one.generate(request(99))
        with pytest.raises(BackendUnavailable, match="worker 'worker-0': KeyError: 'a bug in the engine'"):
            await one.generate(request(6))
        with pytest.raises(BackendUnavailable, match="no room") as caught:
            await one.generate(request(7))
        assert caught.value.lost_tokens == 3
        assert "a bug in the engine" in one.log.read_text()  # its traceback

        await one.publish(V1, first)
        assert one.probe_difference == 0.0
        assert (await one.health()).version == V1
        assert (await one.generate(request())).policy_steps.tolist() == [1] * 5
        np.testing.assert_array_equal(await one.logprobs(PROBE_IDS), first.probe.logprobs)
        await one.publish(V2, second)
        with pytest.raises(
            WeightMismatch,
            match=r"'worker-0' does not serve the weights 0\.3 .* differ by \d.* nats, 0\.0001 are",
        ):
            await one.publish(PolicyVersion(0, 3), wrong)
        assert one.probe_difference > 0.1
        with pytest.raises(ConfigError, match="take WeightFiles, not 7"):
            await one.publish(V2, 7)

    run(one, body)


def test_an_aborted_answer_has_its_tokens_and_a_cancelled_one_leaves_the_engine(tmp_path):
    one = worker(tmp_path, token_s=0.01)

    async def body():
        long, other = (
            asyncio.ensure_future(one.generate(request(1, number, max_tokens=190))) for number in (1, 2)
        )
        await asyncio.sleep(0.2)
        await one.abort(["r1", "unknown"])
        answer = await asyncio.wait_for(long, 1)
        assert answer.finish_reason is FinishReason.ABORT
        assert 0 < answer.num_tokens < 100
        other.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await other
        again = None
        while again is None:  # the number is free again as soon as the process has heard of it
            with contextlib.suppress(BackendRejected):
                again = await one.generate(request(1, 2, max_tokens=5))
        assert again.finish_reason is FinishReason.LENGTH
        assert one._process is not None
        assert not one._process._pending

    run(one, body)


def test_every_waiting_call_fails_once_and_soon_when_the_process_is_killed_and_a_new_one_takes_over(tmp_path):
    files = weights(tmp_path, 1)
    one = worker(tmp_path, token_s=0.05)

    async def body():
        calls = [
            asyncio.ensure_future(one.generate(request(1, number, max_tokens=150))) for number in range(4)
        ]
        await asyncio.sleep(0.2)
        dead = one.pid
        os.kill(dead, signal.SIGKILL)
        killed = time.monotonic()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert time.monotonic() - killed < 1.5
        assert [type(answer) for answer in answers] == [WorkerDied] * 4
        assert f"worker 'worker-0' (process {dead}) was ended by SIGKILL; the end of its log" in str(
            answers[0]
        )
        with pytest.raises(WorkerAbsent, match="SIGKILL"):
            await one.publish(V1, files)
        assert (await serving(one)).version == PolicyVersion()
        assert one.pid != dead
        assert one.start_number == 2
        await one.publish(V1, files)
        assert (await one.generate(request())).policy_steps.tolist() == [1] * 5

    run(one, body)


@pytest.mark.slow
def test_a_replacement_is_started_once_however_often_the_worker_is_asked(tmp_path):
    one = worker(tmp_path, build_s=0.3)

    async def body():
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: not one._process.is_alive)
        for call in (one.health, one.health, lambda: one.generate(request()), one.health):
            with pytest.raises(WorkerAbsent, match=r"SIGKILL|is being started: it is"):
                await call()
        await serving(one)
        assert one.start_number == 2

    run(one, body)


def test_a_worker_that_was_started_again_answers_under_the_published_weights_alone(tmp_path):
    files = weights(tmp_path, 1)
    one = worker(tmp_path)

    async def body():
        await one.publish(V1, files)
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: not one._process.is_alive)
        assert (await serving(one)).version == PolicyVersion()
        with pytest.raises(WorkerAbsent, match="was started again and waits for its weights"):
            await one.generate(request())
        await one.publish(V1, files)
        assert set((await one.generate(request())).policy_steps) == {1}

    run(one, body)


@pytest.mark.slow
def test_weights_whose_publishing_was_not_waited_for_are_still_checked(tmp_path):
    files = weights(tmp_path, 1)
    one = worker(tmp_path, ignores_weights=True, publish_s=0.2)

    async def body():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(one.publish(V1, files), 0.1)
        assert (await one.health()).version == PolicyVersion()
        await asyncio.sleep(0.3)
        with pytest.raises(WeightMismatch, match=r"does not serve the weights 0\.1 that it took"):
            await one.health()

    run(one, body)


def test_a_system_without_pidfds_is_refused(tmp_path, monkeypatch):
    def refuse(pid):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    error = start_error(worker(tmp_path))
    assert type(error) is ConfigError
    assert "no pidfds ([Errno 1] Operation not permitted); they need Linux 5.3" in str(error)


def test_a_worker_does_not_start_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("SWIFT_RLX_WORKER", "what a worker process has in its environment")
    error = start_error(worker(tmp_path))
    assert type(error) is ConfigError
    assert "was about to start workers" in str(error)


def test_an_engine_that_is_lost_takes_its_worker_with_it(tmp_path):
    one = worker(tmp_path, lose_token=5, token_s=0.05)

    async def body():
        other = asyncio.ensure_future(one.generate(request(1, 1, max_tokens=100)))
        with pytest.raises(WorkerDied, match="'worker-0': the engine's core is gone"):
            await one.generate(request(5))
        with pytest.raises(
            WorkerDied, match=r"(?s)the engine's core is gone; the end of its log .*Traceback"
        ):
            await asyncio.wait_for(other, 2)

    run(one, body)


def start_error(one):
    async def main():
        try:
            await one.start()
        finally:
            await one.close()

    with pytest.raises(Exception) as caught:  # noqa: PT011 (the callers check type and text)
        asyncio.run(main())
    return caught.value


def test_an_engine_that_is_not_there_is_an_error_of_the_settings(tmp_path):
    one = worker(tmp_path)
    object.__setattr__(one._launch.spec, "name", "json:nothing")
    error = start_error(one)
    assert type(error) is ConfigError
    assert "the rollout backend 'json:nothing' is refused: module 'json' has no attribute" in str(error)


def test_an_engine_that_cannot_be_built_ends_the_start_with_the_end_of_its_log(tmp_path):
    one = worker(tmp_path)
    object.__setattr__(one._launch.spec, "model", str(tmp_path / "nowhere"))
    error = start_error(one)
    assert type(error) is WorkerDied
    assert "FileNotFoundError" in str(error)
    assert f"the end of its log {one.log}:" in str(error)
    assert "in create" in str(error)
    assert end_of(one.pid) == ""


@pytest.mark.slow
def test_a_start_that_takes_too_long_says_what_it_waited_for(tmp_path):
    one = worker(tmp_path, start_limit_s=1.5, build_s=30.0)
    error = start_error(one)
    assert type(error) is BackendTimeout
    assert "was not ready within 1.5 s, while it was building the engine" in str(error)
    assert end_of(one.pid) == ""


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_without_an_answer_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process, "MAX_STARTS_IN_VAIN", 2)
    one = worker(tmp_path, crash_token=3)

    async def body():
        for _ in range(2):
            await serving(one)
            with pytest.raises(WorkerDied):
                await one.generate(request(3))
        with pytest.raises(
            WorkerLost, match=r"started 2 times in a row without giving an answer, .*; the last time"
        ):
            await one.health()
        monkeypatch.setattr(worker_process, "LOST_S", 0.0)  # later, one more try
        await serving(one)
        await one.generate(request())
        assert one._starts_in_vain == 0

    run(one, body)


@pytest.mark.slow
def test_a_worker_is_not_given_up_for_deaths_under_requests_that_others_died_of_before(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process, "MAX_STARTS_IN_VAIN", 2)
    one = worker(tmp_path, crash_token=3)

    async def body():
        for _ in range(3):
            await serving(one)
            with pytest.raises(WorkerDied):
                await one.generate(replace(request(3), is_suspect=True))
        await serving(one)
        assert one._starts_in_vain == 1

    run(one, body)
