"""The thread with real worker processes, which it starts in its own loop: a run, a dead worker, Ctrl-C."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from scheduler_runs import score_one
from worker_runs import end_of, weights, worker

from swift_rlx.scheduler import IterableSource, RolloutConfig, RolloutThread
from swift_rlx.types import Prompt, SamplingParams


def thread(folder, count, workers):
    prompts = [Prompt(index, np.array([1 + index % 10, 2], np.int32)) for index in range(count)]

    async def make_backends():
        workers.extend(worker(folder, f"worker-{number}", token_s=0.004) for number in range(2))
        for one in workers:
            await one.start()
        return workers

    config = RolloutConfig(
        batch_groups=4, group_size=2, max_inflight=8, sampling=SamplingParams(max_tokens=20)
    )
    return RolloutThread(config, make_backends, IterableSource(prompts), score_one)


@pytest.mark.slow
def test_a_run_over_processes_survives_the_death_of_one(tmp_path):
    files, workers, trained = weights(tmp_path, 1), [], []
    with thread(tmp_path, 24, workers) as rollout:
        pids = [one._process.pid for one in workers]
        while (batch := rollout.next_batch(timeout_s=60)) is not None:
            trained += [one.group.prompt.index for one in batch.groups]
            if len(trained) == 4:
                os.kill(pids[0], signal.SIGKILL)
            rollout.wait_published(rollout.publish(files), timeout_s=60)
    assert sorted(trained) == list(range(24))
    assert rollout.statistics().failures.keys() <= {"WorkerDied"}
    assert {end_of(pid) for pid in pids} <= {"", "Z"}


@pytest.mark.slow
def test_ctrl_c_leaves_no_process(tmp_path):
    workers, pids = [], []

    def interrupted():
        pids.extend(one._process.pid for one in workers)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), thread(tmp_path, 24, workers):
        interrupted()
    assert len(pids) == 2
    assert {end_of(pid) for pid in pids} <= {"", "Z"}
