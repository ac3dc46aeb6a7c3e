"""group_centered and group_sums: the group mean of REINFORCE++-baseline."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swift_rlx.algorithms import group_centered, loo_advantages
from swift_rlx.algorithms.group_sums import group_sums


def tensors(rewards, ids, valid=None):
    valid = valid if valid is not None else [True] * len(rewards)
    return torch.tensor(rewards, dtype=torch.float64), torch.tensor(ids), torch.tensor(valid)


def test_two_prompts_are_centered_apart():
    got = group_centered(*tensors([1.0, 0.0, 0.6, 0.2], [0, 0, 1, 1]))
    torch.testing.assert_close(got, torch.tensor([0.5, -0.5, 0.2, -0.2], dtype=torch.float64))


def test_single_valid_row_gets_zero_and_not_its_raw_reward():
    got = group_centered(*tensors([0.7, math.nan, 5.0], [0, 0, 1], [True, False, True]))
    assert got.tolist() == [0.0, 0.0, 0.0]


def test_invalid_row_is_left_out_of_the_mean():
    got = group_centered(*tensors([1.0, math.inf, 0.0], [4, 4, 4], [True, False, True]))
    assert got.tolist() == [0.5, 0.0, -0.5]


def test_no_division_by_the_spread_of_a_group():
    """Two prompts of different reward scale keep it; a per-group standard deviation would make them equal."""
    got = group_centered(*tensors([1.0, 0.0, 100.0, 0.0], [0, 0, 1, 1]))
    assert got.tolist() == [0.5, -0.5, 50.0, -50.0]


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 3), st.booleans()), min_size=1, max_size=12))
def test_leave_one_out_is_the_centered_reward_times_n_over_n_minus_one(rows):
    rewards, ids, valid = tensors(*map(list, zip(*rows, strict=True)))
    count, _ = group_sums(rewards, ids, valid)
    expected = group_centered(rewards, ids, valid) * torch.where(count > 1, count / (count - 1), 0.0)
    torch.testing.assert_close(loo_advantages(rewards, ids, valid), expected, rtol=1e-12, atol=1e-12)


def test_group_sums_counts_and_averages_valid_rows():
    count, mean = group_sums(
        *tensors([1.0, 2.0, 6.0, 9.0, 9.0], [7, -1, 7, 7, 3], [True, True, True, False, False])
    )
    assert count.tolist() == [2, 1, 2, 2, 0]
    assert mean.tolist() == [3.5, 2.0, 3.5, 3.5, 0.0]


def test_group_sums_names_itself_when_it_refuses():
    with pytest.raises(ValueError, match="group_sums got the reward nan in row 0"):
        group_sums(*tensors([math.nan], [0]))


def test_result_has_the_dtype_of_the_rewards_and_no_gradient():
    rewards = torch.tensor([1.0, 0.0], requires_grad=True)
    got = group_centered(rewards, torch.tensor([0, 0]), torch.tensor([True, True]))
    assert got.dtype == torch.float32
    assert not got.requires_grad
