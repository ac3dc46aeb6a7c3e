"""Whom the death of a worker is held against, and that a prompt that kills its workers ends while the others do not."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from scheduler_runs import prompts, score_one
from small_run import settings

from swift_rlx.backends.progress import Draft
from swift_rlx.errors import WorkerAbsent, WorkerDied
from swift_rlx.scheduler import IterableSource, RolloutScheduler
from swift_rlx.scheduler.blame import judge
from swift_rlx.scheduler.requests import Job
from swift_rlx.scheduler.routing import Load
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import Chunk, DropReason


def job(told=0, furthest=0, deaths=0, is_away=False):
    draft = Draft()
    draft.add(Chunk(0, np.zeros(told, np.int32), np.zeros(told, np.float32), np.zeros(told, np.int32)))
    one = Job(None, 0, Load(1, is_suspect=deaths >= 2), draft=draft, furthest=furthest, deaths=deaths)
    one.is_away = is_away
    return one


def test_a_death_counts_against_all_that_got_nowhere():
    new, progressed, away = job(), job(told=5), job(is_away=True)
    judge([new, progressed, away])
    assert [one.is_blamed for one in (new, progressed, away)] == [True, False, False]
    assert [one.deaths for one in (new, progressed, away)] == [1, 0, 0]


def test_progress_is_more_than_any_attempt_before_had():
    stuck, ahead = job(told=5, furthest=5), job(told=6, furthest=5)
    judge([stuck, ahead])
    assert (stuck.is_blamed, ahead.is_blamed) == (True, False)


def test_where_there_is_a_suspect_the_death_uses_up_an_attempt_of_nobody_else():
    suspect, witness = job(deaths=2), job(deaths=1)
    judge([suspect, witness])
    assert (suspect.is_blamed, witness.is_blamed) == (True, False)
    assert (suspect.deaths, witness.deaths) == (3, 2)
    assert witness.load.is_suspect


class Mortal(FakeBackend):
    """Dies of some prompts; is started again when it is asked how it is, which takes 5 s."""

    def __init__(self, name, deadly, **script):
        super().__init__(name, FakeScript(**{"latency": ConstantLatency(2.0), **script}))
        self.deaths = 0
        self._deadly = deadly
        self._is_dead = self._is_starting = False

    async def generate(self, request, *watch):
        if self._is_dead:
            raise WorkerAbsent(f"{self.name} is gone")
        if request.prompt.index in self._deadly:
            self._clock.call_later(0.1, self._die)
        return await super().generate(request, *watch)

    async def health(self):
        if self._is_dead:
            if not self._is_starting:
                self._clock.call_later(5.0, self._started)
            self._is_starting = True
            raise WorkerAbsent(f"{self.name} is being started")
        return await super().health()

    def _die(self):
        self.deaths += not self._is_dead
        self._is_dead = True
        for answer in self._answers.values():
            if not answer.ended.done():
                answer.ended.set_exception(WorkerDied(f"{self.name} died"))

    def _started(self):
        self._is_dead = self._is_starting = False


@pytest.mark.parametrize("tell_s", [0.0, 0.3])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_prompt_that_kills_its_workers_is_dropped_after_its_retries_and_nothing_else_is(workers, tell_s):
    async def main():
        backends = [Mortal(f"worker-{number}", {5}, tell_s=tell_s) for number in range(workers)]
        config = settings(group_size=2, min_members=2, max_inflight=8, max_staleness=20)
        trained = []
        async with RolloutScheduler(config, backends, IterableSource(prompts(24)), score_one) as scheduler:
            while (batch := await scheduler.next_batch()) is not None:
                trained += [one.group.prompt.index for one in batch.groups]
                scheduler.publish(None)
                await asyncio.sleep(0.5)
            return sorted(trained), scheduler.statistics(), sum(one.deaths for one in backends)

    trained, stats, deaths = run_virtual(main())
    assert trained == [index for index in range(24) if index != 5]
    assert stats.dropped == {DropReason.TOO_FEW_ANSWERS: 1}
    assert 4 <= deaths <= 8  # four attempts of one member, or of both
    assert stats.failovers == deaths
