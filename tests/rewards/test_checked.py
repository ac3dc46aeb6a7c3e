"""What the trainer hands to ms-swift: exact shape, finite numbers, failures attributed (scenarios D 39, 41,
42; G 5, 7)."""

import asyncio
import copy
import inspect
import json
import logging
import math
import pickle
import re
import signal
import threading
from decimal import Decimal
from functools import partial

import numpy as np
import pytest
import torch

from swift_rlx.errors import RewardError
from swift_rlx.rewards import OnError, checked_reward, describe_reward
from swift_rlx.rewards.spec import MARK, RewardMark

EIGHT = [f"completion {i}" for i in range(8)]
VALUES = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def checked(target, on_error="raise", name="x"):
    return checked_reward(describe_reward(name, target, provider="pack 1.0"), OnError.parse(on_error))


def returning(value):
    return checked(lambda completions, **columns: value)


@pytest.mark.parametrize(
    "returned",
    [
        VALUES,
        tuple(VALUES),
        range(8),
        np.arange(8),
        np.arange(8, dtype=np.float16),
        torch.arange(8),
        torch.arange(8, dtype=torch.bfloat16, requires_grad=True),
        [np.float32(v) for v in VALUES],
        [torch.tensor(v) for v in VALUES],
        [np.array(v) for v in VALUES],
        [Decimal(int(v)) for v in VALUES],
    ],
    ids=lambda returned: type(returned).__name__,
)
def test_every_ordinary_sequence_of_numbers_is_taken(returned):
    scores = returning(returned)(EIGHT)
    assert scores == VALUES
    assert all(type(score) is float for score in scores)


def test_generators_are_taken_and_their_exceptions_are_the_rewards_own():
    assert checked(lambda completions: (float(c[-1]) for c in completions))(EIGHT) == VALUES
    with pytest.raises(RewardError, match=r"raised ValueError: .* on row 1 \(completion 'odd'\)"):
        checked(lambda completions: (float(c[-1]) for c in completions))(["good 1", "odd"])


def test_bools_count_as_numbers_and_none_is_unscored():
    assert returning([True, False, None, np.bool_(True)])(EIGHT[:4]) == [1.0, 0.0, None, 1.0]


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ([1.0], "returned 1 values for 8 completions: it must return 8 numbers"),
        (VALUES[:7], "returned 7 values for 8 completions"),
        ([*VALUES, 8.0], "returned 9 values for 8 completions"),
        ([], "returned 0 values for 8 completions"),
        (torch.ones(1), "returned 1 values for 8 completions"),
        (1.0, "returned float 1.0: it must return 8 numbers"),
        (None, "returned NoneType None"),
        ("12345678", "returned str '12345678'"),
        (b"12345678", "returned bytes"),
        (dict.fromkeys(range(8), 1.0), "returned dict"),
        (set(range(8)), "returned set"),
        (np.ones((8, 1)), r"returned an array of shape \(8, 1\)"),
        (torch.ones(8, 2), r"returned an array of shape \(8, 2\)"),
        (torch.tensor(1.0), r"returned an array of shape \(\)"),
    ],
    ids=lambda value: None,
)
@pytest.mark.parametrize("policy", ["raise", "none", "value:0"])
def test_a_wrong_shape_is_refused_under_every_policy(returned, complaint, policy):
    with pytest.raises(RewardError, match=rf"reward 'x' \(pack 1\.0\) {complaint}"):
        checked(lambda completions: returned, policy)(EIGHT)


def test_an_endless_generator_is_refused_without_waiting_for_its_end():
    def endless(completions):
        while True:
            yield 1.0

    with pytest.raises(RewardError, match="for 8 completions"):
        checked(endless)(EIGHT)


@pytest.mark.parametrize("entry", ["1.0", [1.0], {"score": 1}, 1j, torch.ones(1), np.str_("1"), object()])
@pytest.mark.parametrize("policy", ["raise", "none"])
def test_an_entry_that_is_not_a_number_is_refused_with_its_row(entry, policy):
    values = [*VALUES[:5], entry, *VALUES[6:]]
    with pytest.raises(
        RewardError, match=r"returned .*: a reward is a number.*, on row 5 \(completion 'completion 5'"
    ):
        checked(lambda completions: values, policy)(EIGHT)
    with pytest.raises(
        RewardError, match=r"returned .*: a reward is a number.*, on row 5 \(completion 'completion 5'"
    ):
        checked(lambda completion: values[int(completion[-1])], policy)(EIGHT)


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, np.float32("nan"), torch.tensor(math.inf), 1e39, 10**400]
)
@pytest.mark.parametrize("per_completion", [True, False])
def test_a_value_that_is_not_finite_in_float32_is_an_error_by_default(bad, per_completion):
    values = [1.0, bad, 0.5]
    one, every = (lambda completion: values[int(completion[-1])]), (lambda completions: values)
    messages = [
        [{"role": "user", "content": f"question {i}"}, {"role": "assistant", "content": "?"}]
        for i in range(3)
    ]
    with pytest.raises(
        RewardError,
        match=r"'x' \(pack 1\.0\) returned .* on row 1 \(completion 'completion 1', prompt 'question 1'\)",
    ):
        checked(one if per_completion else every)(EIGHT[:3], messages=messages)


def test_a_value_that_is_not_finite_is_masked_or_replaced_when_asked(caplog):
    reward = checked(lambda completions: [1.0, math.nan, math.inf, 0.5], "none")
    assert reward(EIGHT[:4]) == [1.0, None, None, 0.5]
    assert (reward.counters.non_finite, reward.counters.none) == (2, 2)
    assert len(caplog.records) == 1
    assert checked(lambda completions: [1.0, math.nan], "value:-1")(EIGHT[:2]) == [1.0, -1.0]


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
    with pytest.raises(RewardError, match=rf"JSONDecodeError: .* in {re.escape(__file__)}:{line} on row 0"):
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


def test_columns_reach_the_reward_as_rows_or_as_lists():
    columns = {"solution": ["4", "5"], "level": [1, 2], "trainer_state": "STATE"}
    got = []

    def one(completion, solution, *, trainer_state):
        got.append((completion, solution, trainer_state))
        return 0.0

    def every(completions, solution, **rest):
        got.append((completions, solution, rest))
        return [0.0, 0.0]

    checked(one)(["a", "b"], **columns)
    checked(every)(["a", "b"], **columns)
    assert got == [
        ("a", "4", "STATE"),
        ("b", "5", "STATE"),
        (["a", "b"], ["4", "5"], {"level": [1, 2], "trainer_state": "STATE"}),
    ]


def test_columns_that_a_reward_does_not_name_are_left_out():
    assert checked(lambda completions: [1.0, 2.0])(["a", "b"], solution=["4", "5"]) == [1.0, 2.0]
    assert checked(lambda completion, level=7: level)(["a", "b"], level=[1, 2], other=[3, 4]) == [1.0, 2.0]
    assert checked(lambda completion, level=7: level)(["a"]) == [7.0]


def test_column_names_that_collide_with_parameters_do_no_harm():
    columns = {"completions": [["x"], ["y"]], "completion": ["x", "y"], "self": [1, 2]}
    assert checked(lambda completions, **rest: [len(rest)] * 2)(["a", "b"], **columns) == [2.0, 2.0]
    assert checked(lambda completion, **rest: len(rest))(["a", "b"], **columns) == [2.0, 2.0]


def test_what_a_partial_fixed_is_not_overwritten_by_a_column():
    def reward(completion, level, **columns):
        return level

    assert checked(partial(reward, level=9))(["a", "b"], level=[1, 2]) == [9.0, 9.0]


def test_a_required_column_that_is_absent_is_named():
    with pytest.raises(
        RewardError,
        match=r"reward 'x' \(pack 1\.0\) needs columns \['solution'\], the data set has \['level'\]",
    ):
        checked(lambda completion, solution: 0.0, "none")(["a"], level=[1])
    with pytest.raises(RewardError, match=r"needs \['messages'\], which this trainer does not supply"):
        checked(lambda completion, messages: 0.0)(["a"])


def test_images_are_none_where_no_row_of_the_batch_has_any():
    assert checked(lambda completion, images: float(images is None))(["a", "b"]) == [1.0, 1.0]


def test_a_column_of_the_wrong_length_is_refused():
    with pytest.raises(RewardError, match="was given 3 values of column 'solution' for 2 completions"):
        checked(lambda completion, solution: 0.0, "none")(["a", "b"], solution=[1, 2, 3])


def test_a_reward_that_changes_its_lists_disturbs_nobody():
    completions, solution = ["a", "b"], ["1", "2"]

    def reward(completions, solution):
        completions.clear()
        solution.reverse()
        return [0.0, 0.0]

    checked(reward)(completions, solution=solution)
    assert (completions, solution) == (["a", "b"], ["1", "2"])


def test_completions_made_of_parts_are_passed_on_as_they_are():
    parts = [{"type": "text", "text": "hello"}]
    assert checked(lambda completion: completion is parts)([parts]) == [1.0]
    with pytest.raises(
        RewardError, match=r"on row 0 \(completion \"\[\{'type': 'text', 'text': 'hello'\}\]\"\)"
    ):
        checked(lambda completion: completion.strip())([parts])


def test_long_completions_and_prompts_are_cut_in_messages():
    messages = [[{"role": "system", "content": "s"}, {"role": "user", "content": "q" * 500}]]
    with pytest.raises(RewardError, match="raised") as caught:
        checked(lambda completion: 1 / 0)(["c" * 500], messages=messages)
    assert len(str(caught.value)) < 350
    assert "q" * 57 + "..." in str(caught.value)


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
