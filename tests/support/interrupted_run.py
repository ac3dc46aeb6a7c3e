"""A run in a `RolloutThread` over two worker processes; as a program, one that waits for answers until Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from scheduler_runs import score_one
from worker_runs import worker

from swift_rlx.scheduler import IterableSource, RolloutConfig, RolloutThread
from swift_rlx.types import Prompt, SamplingParams


def thread(folder, count, workers, token_s=0.004):
    """Not started yet; `workers` gets the workers."""
    prompts = [Prompt(index, np.array([1 + index % 10, 2], np.int32)) for index in range(count)]

    async def make_backends():
        workers.extend(worker(folder, f"worker-{number}", token_s=token_s) for number in range(2))
        for one in workers:
            await one.start()
        return workers

    config = RolloutConfig(
        batch_groups=4, group_size=2, max_inflight=8, sampling=SamplingParams(max_tokens=20)
    )
    return RolloutThread(config, make_backends, IterableSource(prompts), score_one)


def in_flight(rollout):
    """Requests of each worker."""
    return [each.inflight for each in rollout.scheduler._state.router.workers]


def wait_until(condition, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.005)


def say(what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(folder):
    """Tell the workers' process ids when the trainer waits; after Ctrl-C, what was carried over."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    workers, is_interrupted = [], False
    rollout = thread(folder, 24, workers, token_s=10.0)

    def tell():
        wait_until(lambda: rollout._picking is not None and all(in_flight(rollout)))
        say([one._process.pid for one in workers])

    rollout.start()
    threading.Thread(target=tell).start()
    try:
        rollout.next_batch(timeout_s=120)
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        rollout.close()
    stats = rollout.statistics()
    say({"interrupted": is_interrupted, "carried": stats.carried, "admitted": stats.admitted})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
