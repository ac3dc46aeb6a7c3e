"""A program for tests: a scheduler with two workers that goes on until something ends it.

Each worker has a child that leaves the signals alone, a shared-memory segment and a semaphore; the trainer has a forked
child that holds copies of all its descriptors. Prints the process numbers, then a line for each batch.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
from worker_runs import worker

from swift_rlx.backends import EngineSpec, WeightFiles, WeightKind
from swift_rlx.cluster import WeightDirectory
from swift_rlx.scheduler import IterableSource, RolloutConfig, RolloutScheduler
from swift_rlx.testing.fake_engine import FakeEngine, save_fake_weights
from swift_rlx.types import Prompt, SamplingParams, Score


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


KEPT: list[object] = []


def create(spec: EngineSpec) -> FakeEngine:
    """The fake engine, with all that an engine may leave behind."""
    segment = shared_memory.SharedMemory(create=True, size=1 << 16)
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    KEPT.extend([segment, semaphore])
    say("segments", segment.name, f"sem.{semaphore._semlock.name.strip('/')}")
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-S", "-c", code])
    own_session = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    say("grandchildren", child.pid, own_session.pid)
    return FakeEngine(spec)


def prompts():
    for index in range(10**9):
        yield Prompt(index, np.array([1, 2], np.int32))


async def score(prompt, completions):
    return [Score(1.0) for _ in completions]


async def main(folder: Path) -> None:
    directory = WeightDirectory()
    workers = [worker(folder, f"worker-{number}", token_s=0.002) for number in range(2)]
    for each in workers:
        object.__setattr__(each._launch.spec, "name", "run_with_workers:create")
    await asyncio.gather(*(each.start() for each in workers))
    if (loader := os.fork()) == 0:
        signal.pause()
    say("loader", loader)
    say("workers", *(each.pid for each in workers))
    say("directory", directory.root)
    config = RolloutConfig(batch_groups=2, group_size=2, sampling=SamplingParams(max_tokens=10))
    async with RolloutScheduler(config, workers, IterableSource(prompts()), score) as scheduler:
        while await scheduler.next_batch():
            version = scheduler.version
            with directory.new(version) as place:
                save_fake_weights(place, 1)
            await scheduler.published(
                scheduler.publish(WeightFiles(WeightKind.FULL, str(directory.path(version))))
            )
            directory.keep_only(scheduler.needed_versions)
            say("batch")
    directory.remove()


if __name__ == "__main__":
    # A shell that started the tests in the background may have made them deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(main(Path(sys.argv[1])))
