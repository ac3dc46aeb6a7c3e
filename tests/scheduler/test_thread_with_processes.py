"""The thread with real worker processes, which it starts in its own loop: a run, a dead worker, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import interrupted_run
import pytest
from interrupted_run import in_flight, thread, wait_until
from worker_runs import end_of, weights


def kill_with_requests_in_flight(rollout, pid):
    """A worker that stands still keeps what it is given, so the kill hits it."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: in_flight(rollout)[0] >= 2)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_run_over_processes_survives_the_death_of_one(tmp_path):
    files, workers, trained = weights(tmp_path, 1), [], []
    with thread(tmp_path, 24, workers) as rollout:
        pids = [one._process.pid for one in workers]
        while (batch := rollout.next_batch(timeout_s=60)) is not None:
            trained += [one.group.prompt.index for one in batch.groups]
            version = rollout.publish(files)
            if len(trained) == 4:
                kill_with_requests_in_flight(rollout, pids[0])
            rollout.wait_published(version, timeout_s=60)
    assert sorted(trained) == list(range(24))
    stats = rollout.statistics()
    assert stats.failures.keys() == {"WorkerDied"}
    assert stats.failures["WorkerDied"] >= 2
    assert (stats.failovers, sum(stats.dropped.values())) == (1, 0)
    assert {end_of(pid) for pid in pids} <= {"", "Z"}


@pytest.mark.slow
def test_ctrl_c_in_the_wait_for_answers_in_flight_leaves_no_process(tmp_path):
    command = [sys.executable, interrupted_run.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as trainer:
        pids = json.loads(
            trainer.stdout.readline()
        )  # told when every worker has requests and the trainer waits
        trainer.send_signal(signal.SIGINT)
        seen = json.loads(trainer.communicate(timeout=60)[0])
    assert seen["interrupted"]
    assert seen["carried"] == seen["admitted"] > 0
    assert len(pids) == 2
    assert {end_of(pid) for pid in pids} <= {"", "Z"}
