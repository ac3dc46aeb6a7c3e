"""What a reward may return: exact shape, finite numbers (scenarios D 39, 41; G 5)."""

import math
from decimal import Decimal

import numpy as np
import pytest
import torch

from swift_rlx.errors import RewardError
from swift_rlx.rewards import OnError, checked_reward, describe_reward

EIGHT = [f"completion {i}" for i in range(8)]
VALUES = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def checked(target, on_error="raise"):
    return checked_reward(describe_reward("x", target, provider="pack 1.0"), OnError.parse(on_error))


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
