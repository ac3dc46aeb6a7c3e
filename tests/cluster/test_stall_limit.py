"""How long an engine may be without a word, and the law that one that hangs is replaced within a minute."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from dataclasses import replace

import pytest
from worker_runs import request, run, until, worker

from swift_rlx.cluster import host, process_state, worker_process
from swift_rlx.cluster.host import WATCH_S
from swift_rlx.cluster.stall_limit import FACTOR, FLOOR_S, READING_TOKENS_PER_S, StallLimit
from swift_rlx.errors import WorkerDied

GIVEN_S = 45.0
RESTART_ON_CPU_S = 30.0
LAW_S = 60.0


class Told:
    """A limit under a clock of the test."""

    def __init__(self, given_s: float = GIVEN_S, floor_s: float = FLOOR_S) -> None:
        self.now_s = 0.0
        self.limit = StallLimit(given_s, floor_s, clock=lambda: self.now_s)

    def word(self, after_s: float, counted_s: float = 1000.0) -> None:
        self.now_s += after_s
        self.limit.word(counted_s)


def test_an_engine_that_has_answered_nothing_may_load_and_compile():
    told = Told()
    told.now_s = 40.0
    assert told.limit.seconds() == GIVEN_S
    told.limit.answered(9.0)  # that it is there, which is no answer
    assert told.limit.seconds() == GIVEN_S
    told.word(1.0)
    assert told.limit.seconds() == FLOOR_S, "and how long that took says nothing of what follows"


def test_an_engine_that_hangs_in_its_first_steps_is_replaced_within_a_minute():
    told = Told()
    told.word(9.0)  # the probe of its first weights
    for steps in range(3):
        few_short_prompts = 8 * 64
        notice_s = told.limit.seconds(few_short_prompts) + WATCH_S
        assert notice_s + RESTART_ON_CPU_S < LAW_S, f"after {steps} steps"
        told.word(0.5)


def test_weights_are_given_up_in_time_too():
    assert worker_process.PUBLISH_SHARE * GIVEN_S + RESTART_ON_CPU_S < LAW_S


def test_prompts_that_have_to_be_read_give_it_more_time():
    told = Told()
    told.word(1.0)
    assert told.limit.seconds(1000) == FLOOR_S + 1000 / READING_TOKENS_PER_S
    assert told.limit.seconds(10**6) == GIVEN_S, "never more than was given"


def test_an_engine_that_was_silent_for_a_while_may_be_so_again():
    told = Told()
    told.word(1.0)
    told.word(4.0)
    assert told.limit.seconds() == 4 * FACTOR
    told.word(9.0, counted_s=0.0)  # it had nothing to do
    assert told.limit.seconds() == 4 * FACTOR
    told.limit.answered(5.0)
    assert told.limit.seconds() == 5 * FACTOR
    told.word(20.0)
    assert told.limit.seconds() == GIVEN_S


def test_the_engine_after_one_that_was_ended_by_mistake_is_given_twice_as_long():
    told = Told(floor_s=2 * FLOOR_S)
    told.word(1.0)
    assert told.limit.seconds() == 2 * FLOOR_S


def test_where_engines_are_given_more_they_may_be_silent_for_longer_at_any_time(tmp_path):
    floors = [worker(tmp_path, stall_limit_s=limit)._launch.stall_floor_s for limit in (1.0, 45.0, 450.0)]
    assert floors == [FLOOR_S, FLOOR_S, 150.0]


def test_a_descendant_that_is_stopped_is_found_and_one_that_goes_on_is_not():
    parent = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    try:
        child = int(parent.stdout.readline())
        assert process_state.stopped_descendant(os.getpid()) is None

        async def stop_and_wait() -> int:
            os.kill(child, signal.SIGSTOP)
            await until(lambda: process_state.is_stopped(child))
            return await process_state.descendant_stopped_for(os.getpid(), 0.02)

        assert asyncio.run(asyncio.wait_for(stop_and_wait(), 10)) == child
        os.kill(child, signal.SIGCONT)
        asyncio.run(until(lambda: process_state.stopped_descendant(os.getpid()) is None))
    finally:
        os.kill(child, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()


@pytest.mark.slow
def test_a_worker_one_of_whose_processes_is_stopped_is_ended_for_that(tmp_path):
    one = worker(tmp_path, token_s=0.1)
    one._launch = replace(one._launch, spec=replace(one._launch.spec, name="engine_with_child:create"))

    async def body():
        asking = asyncio.ensure_future(one.generate(request(1, max_tokens=190)))
        [child] = process_state._children(one.pid)
        os.kill(child, signal.SIGSTOP)
        with pytest.raises(WorkerDied, match=rf"process {child} of the engine was stopped for 5 s"):
            await asyncio.wait_for(asking, 3 * host.STOPPED_S)
        assert not one._process.has_stalled, "that was no step of the engine: the next one is not given more"

    run(one, body)
