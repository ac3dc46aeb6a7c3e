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
from swift_rlx.scheduler.blame import clear, judge, suspect_with_its_group
from swift_rlx.scheduler.requests import Job
from swift_rlx.scheduler.routing import Load
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import Chunk, DropReason

RETRIES = 3


def group(**facts):
    flags = ("has_killed", "has_witnesses", "is_suspected", "is_hopeless")
    return SimpleNamespace(**dict.fromkeys(flags, False) | facts)


def job(told=0, furthest=0, deaths=0, is_away=False, is_suspect=False, of=None):
    draft = Draft()
    draft.add(Chunk(0, np.zeros(told, np.int32), np.zeros(told, np.float32), np.zeros(told, np.int32)))
    load = Load(1, is_suspect=is_suspect)
    one = Job(of or group(), 0, load, draft=draft, furthest=furthest, deaths=deaths)
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


def test_who_was_on_two_workers_that_died_is_a_suspect_and_says_so(caplog):
    new, witness = job(), job(deaths=1)
    judge([new, witness], RETRIES)
    assert (new.load.is_suspect, witness.load.is_suspect) == (False, True)
    assert not witness.held.is_suspect, "its slot was taken for something else"
    assert [one.getMessage() for one in caplog.records] == [
        "1 answer(s) were on 2 workers that died, and got no further: they are tried one at a time, until it is known"
        " which of them kills workers"
    ]


def test_with_one_of_a_group_the_others_are_suspects_too():
    of = group()
    witness, other, sibling = job(deaths=1, of=of), job(deaths=1), job(of=of)
    judge([witness], RETRIES)
    assert [suspect_with_its_group(one) for one in (other, sibling)] == [False, True]
    assert [one.load.is_suspect for one in (other, sibling)] == [False, True]
    clear(witness)
    assert not suspect_with_its_group(job(of=of))


def test_when_the_worker_that_a_suspect_has_to_itself_dies_all_its_deaths_use_up_attempts_once():
    suspect = job(deaths=2, is_suspect=True)
    judge([suspect], RETRIES)
    assert (suspect.blame, suspect.deaths, suspect.load.is_suspect) == (3, 0, True)
    judge([suspect], RETRIES)
    assert (suspect.blame, suspect.deaths) == (1, 0)


def test_a_suspect_that_was_beside_others_is_tried_alone_after_one_death_more():
    suspect, begun = job(deaths=2, is_suspect=True), job(told=3)
    judge([suspect, begun], RETRIES)
    assert (suspect.blame, suspect.deaths, suspect.load.is_alone) == (0, 3, True)
    assert (begun.blame, begun.deaths) == (0, 0)


def test_a_suspect_whose_prompt_has_killed_before_has_one_try():
    suspect = job(deaths=2, is_suspect=True, of=group(has_killed=True))
    judge([suspect], RETRIES)
    assert suspect.blame == RETRIES + 1


def test_a_suspect_that_got_further_is_none_any_more():
    suspect = job(deaths=2, is_suspect=True)
    clear(suspect)
    assert (suspect.load.is_suspect, suspect.deaths) == (False, 0)


class Mortal(FakeBackend):
    """Dies of some prompts; is started again when it is asked how it is, which takes 5 s."""

    def __init__(self, name, deadly, **script):
        super().__init__(name, FakeScript(**{"latency": ConstantLatency(2.0), **script}))
        self.deaths = 0
        self.in_vain = self.most_in_vain = 1
        """Starts without an answer, as a `WorkerProcess` counts them."""
        self._deadly = deadly
        self._is_dead = self._is_starting = False

    async def generate(self, request, *watch):
        if self._is_dead:
            raise WorkerAbsent(f"{self.name} is gone")
        if request.prompt.index in self._deadly:
            self._clock.call_later(0.1, self._die)
        try:
            answer = await super().generate(request, *watch)
        except WorkerDied:
            self.in_vain -= request.is_suspect
            raise
        self.in_vain = 0
        return answer

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
        self.in_vain += 1
        self.most_in_vain = max(self.most_in_vain, self.in_vain)
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


class Asked(Mortal):
    """Notes when it was sent a suspect, and how many others it had then."""

    def __init__(self, *given, **script):
        super().__init__(*given, **script)
        self.suspects = []

    async def generate(self, request, *watch):
        if request.is_suspect:
            self.suspects.append((self._clock.now(), len(self._answers)))
        return await super().generate(request, *watch)


def test_innocent_suspects_are_cleared_by_their_first_tokens_one_after_the_other():
    """Two deaths before anybody had a token; answers take 20 s, and the first tokens of one 0.1 s."""

    async def main():
        backend = Asked("worker-0", set(), tell_s=0.1, latency=ConstantLatency(20.0))
        config = settings(group_size=2, min_members=2, batch_groups=8, max_inflight=16, max_staleness=20)

        async def kill():
            await asyncio.sleep(0.05)
            backend._die()
            # Again behind the one that shows that the worker is well.
            while backend._is_dead or len(backend._answers) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            backend._die()

        killing = asyncio.ensure_future(kill())
        async with RolloutScheduler(config, [backend], IterableSource(prompts(8)), score_one) as scheduler:
            await scheduler.next_batch()
            await killing
            return scheduler.statistics(), backend.deaths, backend.suspects, asyncio.get_running_loop().time()

    stats, deaths, suspects, end_s = run_virtual(main())
    assert (deaths, sum(stats.dropped.values())) == (2, 0)
    assert len(suspects) > 8
    assert max(beside for _, beside in suspects) > 8, "those that were cleared go on beside the next one"
    assert end_s < 60, "not an answer's 20 s for each"


@pytest.mark.parametrize("slots", [4, 8, 16])
@pytest.mark.parametrize("first", [{0}, {0, 1}])
def test_deadly_prompts_with_many_members_cost_a_worker_few_starts_in_vain(slots, first):
    """At the head of the line, where nobody has answered yet; a worker of ours is given up after five of them."""

    async def main():
        backend = Mortal("worker-0", first, tell_s=0.3)
        config = settings(group_size=8, min_members=2, max_inflight=slots, max_staleness=20)
        async with RolloutScheduler(config, [backend], IterableSource(prompts(8)), score_one) as scheduler:
            trained = []
            while (batch := await scheduler.next_batch()) is not None:
                trained += [one.group.prompt.index for one in batch.groups]
                scheduler.publish(None)
            return sorted(trained), backend.most_in_vain

    trained, most_in_vain = run_virtual(main())
    assert trained == [index for index in range(8) if index not in first]
    assert most_in_vain < 5
