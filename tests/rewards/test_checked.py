"""Failures are attributed to their rows; sync and async rewards behave alike (scenarios D 42; G 7)."""

import asyncio
import copy
import inspect
import json
import logging
import pickle
import re
import signal
import threading

import pytest

from swift_rlx.errors import RewardError
from swift_rlx.rewards import OnError, checked_reward, describe_reward
from swift_rlx.rewards.spec import MARK, RewardMark

EIGHT = [f"completion {i}" for i in range(8)]
VALUES = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def checked(target, on_error="raise"):
    return checked_reward(describe_reward("x", target, provider="pack 1.0"), OnError.parse(on_error))


def odd_row(completions, **columns):
    return [{"good": 1.0}[completion] for completion in completions]


def odd_completion(completion, **columns):
    return {"good": 1.0}[completion]


async def odd_row_async(completions, **columns):
    return odd_row(completions)


async def odd_completion_async(completion, **columns):
    return odd_completion(completion)


ODD = ["good"] * 5 + ["the odd one"] + ["good"] * 2
FORMS = [odd_row, odd_completion, odd_row_async, odd_completion_async]


def call(reward, *args, **kwargs):

    result = reward(*args, **kwargs)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_raises_is_named_by_default(form):
    with pytest.raises(
        RewardError,
        match=r"reward 'x' \(pack 1\.0\) raised KeyError: 'the odd one' in .*test_checked\.py:\d+ "
        r"on row 5 \(completion 'the odd one'",
    ) as caught:
        call(checked(form), ODD)
    assert isinstance(caught.value.__cause__, KeyError)


def test_the_line_named_is_the_rewards_own_and_not_one_of_a_library_below():
    def reward(completion):
        return json.loads(completion)["score"]

    line = reward.__code__.co_firstlineno + 1
    with pytest.raises(RewardError, match=rf"JSONDecodeError: .* in {re.escape(__file__)}:{line} on the row"):
        checked(reward)(["not json"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("policy", "given"), [("none", None), ("value:-1", -1.0)])
def test_a_row_that_raises_costs_the_others_nothing(form, policy, given):
    reward = checked(form, policy)
    assert call(reward, ODD) == [1.0] * 5 + [given] + [1.0] * 2
    counters = reward.take_counters()
    assert (counters.calls, counters.rows) == (1, 8)
    assert counters.failures == {"KeyError": 1}
    assert counters.none == (policy == "none")
    assert reward.counters.rows == 0


@pytest.mark.parametrize("target", [odd_row, odd_row_async])
def test_a_batch_reward_that_raises_fails_as_a_whole(target, monkeypatch):
    monkeypatch.setattr(target, MARK, RewardMark(scope="batch"), raising=False)
    reward = checked(target, "none")
    assert call(reward, ODD) == [None] * 8
    assert reward.counters.failures == {"KeyError": 8}
    with pytest.raises(RewardError, match=r"raised KeyError: 'the odd one' in .*:\d+ on a batch of 8$"):
        call(checked(target), ODD)


def test_a_call_that_fails_only_as_a_whole_says_so():
    def too_many(completions):
        if len(completions) > 2:
            raise MemoryError("8 completions")
        return [1.0] * len(completions)

    with pytest.raises(
        RewardError,
        match=r"raised MemoryError: 8 completions in .*:\d+ on a batch of 8, but on none of its rows",
    ):
        checked(too_many)(EIGHT)
    assert checked(too_many, "none")(EIGHT) == [1.0] * 8


def test_a_wrong_length_is_refused_when_rows_are_tried_alone_too():
    def sloppy(completions):
        if len(completions) > 1:
            raise ValueError("not together")
        return [1.0, 2.0]

    with pytest.raises(RewardError, match="returned 2 values for 1 completions"):
        checked(sloppy, "none")(EIGHT)


def test_scoring_stops_at_the_first_failure_when_that_ends_the_run():
    seen = []

    def reward(completion):
        seen.append(completion)
        raise ValueError("no")

    with pytest.raises(RewardError, match="on row 0"):
        checked(reward)(EIGHT)
    assert seen == EIGHT[:1]


def test_one_warning_per_cause_and_not_per_row(caplog):
    def reward(completion):
        if completion.endswith(("1", "2", "3")):
            raise ValueError(f"text differs: {completion}")
        return int(completion[-1]) // (int(completion[-1]) - 4)

    target = checked(reward, "none")
    with caplog.at_level(logging.WARNING):
        target(EIGHT)
        target(EIGHT)
    assert target.counters.failures == {"ValueError": 6, "ZeroDivisionError": 2}
    assert [record.getMessage().partition(" in ")[0] for record in caplog.records] == [
        "reward 'x' (pack 1.0) raised ValueError: text differs: completion 1",
        "reward 'x' (pack 1.0) raised ZeroDivisionError: integer division or modulo by zero",
    ]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("policy", ["raise", "none", "value:0"])
def test_an_interrupt_is_never_swallowed(stop, policy):
    def reward(completion):
        raise stop

    async def reward_async(completions):
        raise stop

    with pytest.raises(stop):
        checked(reward, policy)(EIGHT)
    with pytest.raises(stop):
        call(checked(reward_async, policy), EIGHT)


def test_a_timeout_that_is_no_ordinary_exception_is_a_failure_of_its_row():
    # math-verify's TimeoutException derives from BaseException.
    class TimeoutException(BaseException):
        pass

    def reward(completion):
        if completion == EIGHT[2]:
            raise TimeoutException("5 s")
        return 1.0

    assert checked(reward, "none")(EIGHT[:4]) == [1.0, 1.0, None, 1.0]


def test_a_verifier_that_uses_sigalrm_works():
    def alarmed(completion):
        assert threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 30)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        return 1.0

    assert checked(alarmed)(EIGHT) == [1.0] * 8


def test_no_completions_give_no_scores_and_no_call():
    assert checked(lambda completions: 1 / 0)([]) == []


def test_a_plain_function_that_returns_a_coroutine_is_told_to_be_async(recwarn):
    async def inner(completions):
        return [1.0]

    with pytest.raises(RewardError, match="returned a coroutine: declare the reward with `async def`"):
        checked(lambda completions: inner(completions))(["a"])
    with pytest.raises(RewardError, match="returned a coroutine: declare the reward with `async def`"):
        checked(lambda completion: inner(completion))(["a"])
    assert not recwarn.list


def test_async_rewards_look_asynchronous_to_ms_swift_and_others_do_not():

    assert inspect.iscoroutinefunction(checked(odd_row_async).__call__)
    assert inspect.iscoroutinefunction(checked(odd_completion_async).__call__)
    assert not inspect.iscoroutinefunction(checked(odd_row).__call__)


def test_async_calls_for_single_completions_run_together():

    async def main():
        everyone_started = asyncio.Event()
        started = 0

        async def reward(completion):
            nonlocal started
            started += 1
            if started == len(EIGHT):
                everyone_started.set()
            await asyncio.wait_for(everyone_started.wait(), 20)
            return float(completion[-1])

        return await checked(reward)(EIGHT)

    assert asyncio.run(main()) == VALUES


def test_a_cancelled_async_reward_is_cancelled_and_not_scored():

    async def main():
        entered = asyncio.Event()

        async def reward(completions):
            entered.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(checked(reward, "none")(EIGHT))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda reward: pickle.loads(pickle.dumps(reward))])
def test_a_checked_reward_can_be_copied_and_pickled(clone):
    assert clone(checked(odd_completion))(["good"]) == [1.0]
