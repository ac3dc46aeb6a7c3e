"""Whom the death of a worker is held against, and that a prompt that kills its workers ends while the others do not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

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

RETRIES = 3


def job(told=0, furthest=0, deaths=0, is_away=False, is_suspect=False, has_killed=False):
    draft = Draft()
    draft.add(Chunk(0, np.zeros(told, np.int32), np.zeros(told, np.float32), np.zeros(told, np.int32)))
    load = Load(1, is_suspect=is_suspect)
    group = SimpleNamespace(has_killed=has_killed)
    one = Job(group, 0, load, draft=draft, furthest=furthest, deaths=deaths)
    one.is_away = is_away
    return one


def test_a_death_with_several_on_the_worker_uses_up_nobodys_attempt_and_is_remembered_of_who_got_nowhere():
    new, progressed, away = job(), job(told=5), job(is_away=True)
    judge([new, progressed, away], RETRIES)
    assert [one.blame for one in (new, progressed, away)] == [0, 0, 0]
    assert [one.deaths for one in (new, progressed, away)] == [1, 0, 0]


def test_progress_is_more_than_any_attempt_before_had():
    stuck, ahead = job(told=5, furthest=5), job(told=6, furthest=5)
    judge([stuck, ahead], RETRIES)
    assert (stuck.deaths, ahead.deaths) == (1, 0)


def test_who_was_on_two_workers_that_died_is_a_suspect():
    new, witness = job(), job(deaths=1)
    judge([new, witness], RETRIES)
    assert (new.load.is_suspect, witness.load.is_suspect) == (False, True)
    assert not witness.held.is_suspect, "its slot was taken for something else"


def test_when_the_worker_of_a_suspect_dies_all_its_deaths_use_up_attempts_once():
    suspect = job(deaths=2, is_suspect=True)
    judge([suspect], RETRIES)
    assert (suspect.blame, suspect.deaths, suspect.load.is_suspect) == (3, 0, True)
    judge([suspect], RETRIES)
    assert (suspect.blame, suspect.deaths) == (1, 0)


def test_a_suspect_whose_prompt_has_killed_before_has_one_try():
    suspect = job(deaths=2, is_suspect=True, has_killed=True)
    judge([suspect], RETRIES)
    assert suspect.blame == RETRIES + 1


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
@pytest.mark.parametrize(("deadly", "members"), [({5}, 2), ({5}, 6), ({2, 5, 6, 20}, 2), ({21, 22, 23}, 3)])
def test_prompts_that_kill_their_workers_are_dropped_after_their_retries_and_nothing_else_is(
    workers, tell_s, deadly, members
):
    async def main():
        backends = [Mortal(f"worker-{number}", deadly, tell_s=tell_s) for number in range(workers)]
        config = settings(group_size=members, min_members=2, max_inflight=8, max_staleness=20)
        trained = []
        async with RolloutScheduler(config, backends, IterableSource(prompts(24)), score_one) as scheduler:
            while (batch := await scheduler.next_batch()) is not None:
                assert all(len(one.group.members) == members for one in batch.groups)
                trained += [one.group.prompt.index for one in batch.groups]
                scheduler.publish(None)
                await asyncio.sleep(0.5)
            return sorted(trained), scheduler.statistics(), sum(one.deaths for one in backends)

    trained, stats, deaths = run_virtual(main())
    assert trained == [index for index in range(24) if index not in deadly]
    assert stats.dropped == {DropReason.TOO_FEW_ANSWERS: len(deadly)}
    assert 4 <= deaths <= 4 * members * len(deadly)  # four attempts of one member, or of each
    assert stats.failovers == deaths


def test_a_suspect_that_gets_further_has_others_beside_it():
    """A worker dies twice under innocent requests: afterwards it makes as many answers at a time as before."""
    kills = iter((0.5, 8.0))

    async def main():
        backend = Mortal("worker-0", set(), tell_s=0.1, latency=ConstantLatency(2.0))
        most = []

        async def kill():
            for at_s in kills:
                await asyncio.sleep(at_s)
                backend._die()

        killing = asyncio.ensure_future(kill())
        config = settings(group_size=2, min_members=2, max_inflight=8, max_staleness=20)
        async with RolloutScheduler(config, [backend], IterableSource(prompts(24)), score_one) as scheduler:
            while await scheduler.next_batch() is not None:
                most.append(scheduler.statistics().inflight)
                scheduler.publish(None)
            await killing
            return scheduler.statistics(), max(most), backend.deaths

    stats, most, deaths = run_virtual(main())
    assert (deaths, stats.trained, sum(stats.dropped.values())) == (2, 24, 0)
    assert most > 4
