"""Published weights stay while somebody may read them, and no more of them than was planned for."""

from __future__ import annotations

import asyncio
import itertools
import os

import pytest
from scheduler_runs import prompts, score_one
from small_run import settings

from swift_rlx.backends import WeightUpdate
from swift_rlx.cluster import WeightDirectory, needed_bytes
from swift_rlx.cluster.weight_directory import HEADERS_BYTES
from swift_rlx.errors import WorkerAbsent, WorkerDied
from swift_rlx.scheduler import IterableSource, RolloutScheduler
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript, Fault
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import PolicyVersion

SIZE = 1000
LOAD_S = 7.0
"""Of a worker, in which the trainer makes several steps of 1 s."""


class Reader(FakeBackend):
    """Its weights have to be there until it has read them."""

    async def publish(self, version, payload):
        assert os.listdir(payload) == ["weights"]
        await super().publish(version, payload)
        assert os.listdir(payload) == ["weights"], f"{self.name} lost {version}"


class Trainer:
    """Publishes after every step, in the order in which the trainer does it."""

    def __init__(self, folder, workers):
        self.directory = WeightDirectory(shared_memory=folder)
        self.workers = workers
        self.most_bytes = 0

    async def run(self, steps):
        config = settings(max_staleness=8, max_batches=steps, weight_update=self.mode, abort_grace_s=50.0)
        scheduler = RolloutScheduler(
            config, self.workers, IterableSource(prompts(1000)), score_one, payload=self.write(0)
        )
        async with scheduler:
            while await scheduler.next_batch() is not None:
                await asyncio.sleep(1.0)
                payload = self.write(scheduler.version.step + 1)
                scheduler.publish(payload)
                self.directory.keep_only(scheduler.needed_versions)
        self.directory.remove()

    @property
    def mode(self):
        return WeightUpdate.KEEP if self.workers[0].capabilities.keep else WeightUpdate.DRAIN

    def write(self, step):
        version = PolicyVersion(0, step)
        with self.directory.new(version) as folder:
            (folder / "weights").write_bytes(bytes(SIZE))
            files = self.directory.root.rglob("weights")
            self.most_bytes = max(self.most_bytes, sum(file.stat().st_size for file in files))
        return str(self.directory.path(version))


def planned(workers):
    return needed_bytes(SIZE - HEADERS_BYTES, workers)


@pytest.mark.parametrize("mode", [WeightUpdate.KEEP, WeightUpdate.DRAIN])
def test_a_trainer_that_runs_ahead_of_a_slow_worker_needs_no_more_room_than_planned(tmp_path, mode):
    worker = Reader(script=FakeScript(ConstantLatency(3.0), publish_s=LOAD_S), mode=mode)
    trainer = Trainer(tmp_path, [worker])
    run_virtual(trainer.run(30))
    steps = [version.step for version in worker.published]
    assert len(steps) < 25, "some were left out"
    assert trainer.most_bytes == planned(1)


def test_a_worker_that_is_brought_back_reads_to_the_end_what_has_long_been_replaced(tmp_path):
    number, health = itertools.count(), itertools.count()

    def fault(request):
        return Fault(WorkerDied) if next(number) == 4 else None

    def is_starting():  # after it was asked at the start of the run
        return WorkerAbsent("it is being started") if 1 <= next(health) <= 4 else None

    script = FakeScript(ConstantLatency(0.5), publish_s=LOAD_S, fault=fault, health_fault=is_starting)
    back = Reader("worker-0", script)
    other = Reader("worker-1", FakeScript(ConstantLatency(0.5)))
    trainer = Trainer(tmp_path, [back, other])
    run_virtual(trainer.run(120))
    assert len(back.published) > 2
    assert len(other.published) > 2 * len(back.published), "it was replaced meanwhile"
    assert planned(1) <= trainer.most_bytes <= planned(2)
