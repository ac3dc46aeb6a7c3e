"""What bounds the start, the end and the silence of a worker process, and what it is before and after."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from worker_runs import end_of, request, until, worker

from swift_rlx.backends import EngineSpec
from swift_rlx.cluster import WorkerProcess, hosted_process, launch
from swift_rlx.errors import BackendRejected, BackendUnavailable, WorkerDied


def test_a_description_that_is_no_plain_data_is_refused_before_there_is_a_process(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(launch.Launch, "popen", lambda *arguments: started.append(arguments))
    with pytest.raises(BackendRejected, match="Start cannot be sent to another process"):
        asyncio.run(worker(tmp_path, token_s=object()).start())
    assert not started


def test_a_process_that_cannot_be_ended_is_reported_and_not_waited_for(tmp_path, monkeypatch, caplog):
    one = worker(tmp_path, hang_token=5, close_grace_s=0.1)
    end_group = hosted_process.end_group
    monkeypatch.setattr(hosted_process, "END_S", 0.1)
    monkeypatch.setattr(hosted_process, "end_group", lambda *arguments: None)

    async def main():
        await one.start()
        hanging = asyncio.ensure_future(one.generate(request(5)))
        await until(lambda: end_of(one.pid) == "T")
        await asyncio.wait_for(one.close(), 10)
        with pytest.raises(WorkerDied, match="was closed"):
            await hanging
        end_group(one.pid)
        await until(lambda: one._process.ended.done())

    asyncio.run(main())
    assert f"process {one.pid} of worker 'worker-0' was killed 0.1 s ago and does not end" in caplog.text


def test_a_worker_that_is_closed_in_the_middle_of_its_start_says_so(tmp_path):
    one = worker(tmp_path, build_s=30.0)

    async def main():
        starting = asyncio.ensure_future(one.start())
        await until(lambda: one._process is not None)
        await one.close()
        with pytest.raises(BackendUnavailable, match="'worker-0' is closed"):
            await one.health()
        await asyncio.gather(starting, return_exceptions=True)

    asyncio.run(main())


def test_an_engine_on_a_cpu_may_take_longer_to_say_how_it_is(tmp_path):
    on_cpu = EngineSpec("x", "y")
    limits = [
        WorkerProcess(each, run_directory=tmp_path, stall_limit_s=limit)._launch.stall_limit_s
        for each in (on_cpu, replace(on_cpu, devices=("0",)))
        for limit in (None, 7.0)
    ]
    assert limits == [300.0, 7.0, 45.0, 7.0]


def test_a_worker_that_was_not_started_or_is_closed_says_so(tmp_path):
    one = worker(tmp_path)

    async def main():
        with pytest.raises(BackendUnavailable, match="was not started: await its `start` first"):
            await one.generate(request())
        with pytest.raises(BackendUnavailable, match="was not started"):
            _ = one.capabilities
        await one.abort(["r"])
        await one.close()
        await one.close()
        with pytest.raises(BackendUnavailable, match="'worker-0' is closed"):
            await one.start()

    asyncio.run(main())


def test_the_ranks_of_the_trainer_are_not_told_to_workers(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("RANKING", "kept")
    environment = launch.without_ranks({"OMP_NUM_THREADS": "2"})
    assert not {"RANK", "TORCHELASTIC_RUN_ID"} & environment.keys()
    assert environment["RANKING"] == "kept"
    assert environment["OMP_NUM_THREADS"] == "2"
