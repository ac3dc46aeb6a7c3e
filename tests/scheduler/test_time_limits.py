"""How long an attempt may be silent: what counts as a sign of life for it, and what does not."""

from __future__ import annotations

import asyncio

import pytest
from scheduler_runs import prompts, score_one
from small_run import settings, train

from swift_rlx.clock import LoopClock
from swift_rlx.scheduler import IterableSource, RolloutScheduler
from swift_rlx.scheduler.time_limits import Limits, Pulse, TimeLimit
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript, Fault
from swift_rlx.testing.virtual_clock import run_virtual


class HandClock:
    """Time that a test sets."""

    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time


def pulse():
    clock = HandClock()
    return clock, Pulse(clock)


def test_every_token_of_a_worker_is_a_sign_of_life_for_what_waits_behind_it():
    clock, one = pulse()
    first, second = one.sent(), one.sent()
    for clock.time in range(1, 100):
        one.told(first)
    assert one.silent_since(second) == 99
    clock.time = 110
    assert one.silent_since(first) == one.silent_since(second) == 99


def test_a_request_that_later_ones_have_passed_stands_for_itself():
    clock, one = pulse()
    old, young = one.sent(), one.sent()
    for clock.time in (10.0, 20.0, 30.0):
        one.told(young)
    assert one.silent_since(old) == 10.0
    clock.time = 40.0
    one.told(old)
    assert one.silent_since(old) == 40.0


def test_so_does_one_that_has_tokens_whatever_its_worker_makes_for_others():
    clock, one = pulse()
    stuck, other = one.sent(), one.sent()
    one.told(stuck)
    for clock.time in (10.0, 20.0, 30.0):
        one.told(other)
    assert one.silent_since(stuck) == 0.0


def test_while_weights_are_taken_nobody_is_silent_and_then_all_begin_anew():
    clock, one = pulse()
    old, young = one.sent(), one.sent()
    one.told(old)
    one.told(young)
    with one.publishing():
        clock.time = 200.0
        assert one.is_publishing
        assert one.silent_since(old) == 200.0
    clock.time = 230.0
    assert one.silent_since(young) == 200.0
    one.told(old)
    assert one.silent_since(young) == 230.0  # it may wait for its place behind the older one
    clock.time = 250.0
    assert one.silent_since(young) == 230.0
    assert not one.is_publishing


def test_silence_from_before_a_publish_goes_on_to_count_after_it():
    clock, one = pulse()
    stuck, other = one.sent(), one.sent()
    one.told(stuck)
    silent_s = []
    for second in range(1, 60):  # a publish every second, of 0.3 s and 0.1 s until answers go on
        clock.time = second + 0.0
        with one.publishing():
            clock.time = second + 0.3
        clock.time = second + 0.4
        one.told(other)
        clock.time = second + 0.9
        silent_s.append(clock.time - one.silent_since(stuck))
    assert silent_s[9] == pytest.approx(0.6 * 10 + 0.5, abs=0.6)
    assert silent_s[-1] == pytest.approx(0.6 * 59 + 0.5, abs=0.6)


def test_a_conversation_that_is_with_its_environment_is_not_silent():
    clock, one = pulse()
    talk = one.sent()
    one.told(talk, is_away=True)
    clock.time = 300.0
    assert one.silent_since(talk) == 300.0
    one.told(talk)
    clock.time = 310.0
    assert one.silent_since(talk) == 300.0


def test_an_attempt_that_has_ended_is_forgotten():
    _, one = pulse()
    wait = one.sent()
    one.ended(wait)
    one.told(one.sent())
    assert not one._waits.keys() - {2}


@pytest.mark.parametrize(
    ("limits", "told_s", "ends_s", "reason"),
    [
        (Limits(30.0), [], 30.0, r"gave no answer to request r within 30 s"),
        (Limits(30.0, 7.0), [], 7.0, r"gave no first token of request r for 7 s"),
        (Limits(30.0, 7.0, 4.0), [6.0, 9.0], 13.0, r"gave no further token of request r for 4 s"),
        (Limits(30.0, 7.0, 4.0), [*range(3, 30, 3)], 30.0, r"gave no answer to request r within 30 s"),
    ],
)
def test_an_attempt_ends_at_the_first_limit_that_it_meets(limits, told_s, ends_s, reason):
    async def main():
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        limit = TimeLimit("w", "r", LoopClock(), limits, over.set)
        limit.start(Pulse(LoopClock()))
        for when in told_s:
            loop.call_later(when, limit.told, False)
        await over.wait()
        ended_s = loop.time()
        limit.stop()
        return ended_s, limit.reason

    ended_s, said = run_virtual(main())
    assert ended_s == pytest.approx(ends_s, abs=0.01)
    assert said == f"worker 'w' {reason}"


def streaming(name="worker-0", **script):
    return FakeBackend(name, FakeScript(**{"tell_s": 0.3, **script}))


def test_a_request_that_stalls_among_others_goes_on_elsewhere_within_a_minute():
    def fault(request):
        return Fault(None, after_s=2.0) if request.prompt.index == 0 else None

    seen = train(
        settings(max_staleness=50),
        lambda: [streaming(fault=fault, latency=ConstantLatency(8.0)), streaming("worker-1")],
        count=40,
    )
    assert seen.stats.failures == {"BackendTimeout": 1}
    assert sorted(seen.indices) == list(range(40))
    (answer,) = [
        one.group.members[0].completion
        for batch in seen.batches
        for one in batch.groups
        if one.group.prompt.index == 0
    ]
    assert answer.finish_s - answer.submit_s < 60
    assert seen.stats.repeated_tokens == 0  # 2 s of it were told, and gone on behind


def test_a_long_answer_that_progresses_and_one_that_waits_in_the_engine_are_left_alone():
    class Queueing(FakeBackend):
        """Works on two requests at a time, in the order in which they came."""

        def __init__(self):
            super().__init__(script=FakeScript(ConstantLatency(100.0), tell_s=0.3))
            self._places = asyncio.Semaphore(2)

        async def generate(self, request, *watch):
            async with self._places:
                return await super().generate(request, *watch)

    seen = train(settings(request_timeout_s=1000.0, max_staleness=50), lambda: [Queueing()], count=12)
    assert sorted(seen.indices) == list(range(12))
    assert not seen.stats.failures  # the last of them waited for 500 s


def test_a_worker_that_does_not_tell_of_tokens_is_only_held_to_the_whole_time():
    seen = train(settings(), lambda: [FakeBackend(script=FakeScript(ConstantLatency(200.0)))], count=2)
    assert not seen.stats.failures


def test_a_publish_that_takes_long_costs_no_answer_its_time():
    async def main():
        backend = streaming(publish_s=100.0, latency=ConstantLatency(20.0))

        class Frozen(FakeBackend):
            async def publish(self, version, payload):
                for answer in self._answers.values():
                    answer.stall_s = 0.0  # makes nothing meanwhile
                await super().publish(version, payload)

        backend.__class__ = Frozen
        source = IterableSource(prompts(4))
        async with RolloutScheduler(settings(), [backend], source, score_one) as scheduler:
            await asyncio.sleep(5.0)
            await scheduler.published(scheduler.publish(None))
            return scheduler.statistics().failures

    assert run_virtual(main()) == {}
