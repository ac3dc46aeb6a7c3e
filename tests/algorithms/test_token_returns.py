"""token_rewards and reverse_returns: where the reward lands and how it flows back."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from swift_rlx.algorithms import reverse_returns, token_rewards

F64 = torch.float64
NAN = math.nan
REWARDS = tensor([1.0, 0.0, 0.5], dtype=F64)
MASK = tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool()
KL = tensor([[0.2, -0.1, 0.4], [0.3, 0.1, NAN], [-0.2, NAN, NAN]], dtype=F64)


def returns_by_loop(rewards, kl, mask, beta, gamma):
    """Row by row from the end, in Python floats."""
    result = []
    for reward, kl_row, mask_row in zip(rewards, kl, mask, strict=True):
        row, later, seen = [0.0] * len(mask_row), 0.0, False
        for t in reversed(range(len(mask_row))):
            if mask_row[t]:
                here = -beta * kl_row[t] + (0.0 if seen else reward)
                later = here + gamma * later
                row[t], seen = later, True
        result.append(row)
    return result


def returns(rewards, kl, mask, beta, gamma):
    return reverse_returns(token_rewards(rewards, kl, mask, beta), mask, gamma)


@st.composite
def rollouts(draw):
    rows, width = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    numbers = st.floats(-3, 3)
    rewards = draw(st.lists(numbers, min_size=rows, max_size=rows))
    kl = [draw(st.lists(numbers, min_size=width, max_size=width)) for _ in range(rows)]
    mask = [draw(st.lists(st.booleans(), min_size=width, max_size=width)) for _ in range(rows)]
    return tensor(rewards, dtype=F64), tensor(kl, dtype=F64), tensor(mask)


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [
        (1.0, [[0.95, 0.97, 0.96], [-0.04, -0.01, 0], [0.52, 0, 0]]),
        (0.9, [[0.7666, 0.874, 0.96], [-0.039, -0.01, 0], [0.52, 0, 0]]),
    ],
)
def test_returns_of_three_completions(gamma, expected):
    got = returns(REWARDS, KL, MASK, 0.1, gamma)
    torch.testing.assert_close(got, tensor(expected, dtype=F64), rtol=0, atol=1e-12)


def test_reward_lands_on_the_last_sampled_token_also_before_a_tool_output():
    mask = tensor([[1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]]).bool()
    got = token_rewards(tensor([1.0, 2.0, 3.0]), torch.zeros(3, 4), mask, 0.1)
    assert got.tolist() == [[0, 1, 0, 0], [0, 0, 0, 2], [0, 0, 3, 0]]


@pytest.mark.parametrize("reward", [5.0, NAN, math.inf])
def test_row_without_a_sampled_token_gets_nothing(reward):
    mask = tensor([[False, False], [True, True]])
    got = token_rewards(tensor([reward, 1.0]), tensor([[NAN, NAN], [0.0, 0.0]]), mask, 0.1)
    assert got.tolist() == [[0, 0], [0, 1]]
    assert reverse_returns(got, mask, 1.0).tolist() == [[0, 0], [1, 1]]


def test_credit_crosses_a_tool_output():
    """Cutting the running sum at the gap would give -0.02 at the first token."""
    mask = tensor([[True, False, True]])
    got = returns(tensor([1.0], dtype=F64), tensor([[0.2, NAN, 0.4]], dtype=F64), mask, 0.1, 1.0)
    torch.testing.assert_close(got, tensor([[0.94, 0.0, 0.96]], dtype=F64), rtol=0, atol=1e-12)


def test_kl_of_tool_tokens_does_not_leak_into_returns():
    """Counting the two tool tokens' KL would give -3.439; tool tokens are not discount steps either."""
    mask = tensor([[1, 0, 0, 1]]).bool()
    got = returns(tensor([0.0], dtype=F64), torch.ones(1, 4, dtype=F64), mask, 1.0, 0.9)
    torch.testing.assert_close(got, tensor([[-1.9, 0.0, 0.0, -1.0]], dtype=F64), rtol=0, atol=1e-12)


def test_tool_output_of_any_length_gives_the_same_returns():
    kl, reward = tensor([[0.2, 0.4]], dtype=F64), tensor([1.0], dtype=F64)
    short = returns(reward, kl, tensor([[True, True]]), 0.1, 0.9)
    for gap in (1, 2, 5):
        padded = torch.cat([kl[:, :1], torch.full((1, gap), NAN, dtype=F64), kl[:, 1:]], 1)
        mask = tensor([[True, *([False] * gap), True]])
        got = returns(reward, padded, mask, 0.1, 0.9)
        assert got[mask].equal(short[0])


def test_without_kl_and_discount_every_token_has_the_reward():
    got = returns(REWARDS, KL, MASK, 0.0, 1.0)
    assert got.equal(REWARDS[:, None] * MASK)


def test_gamma_zero_leaves_each_token_its_own_reward():
    rewards = token_rewards(REWARDS, KL, MASK, 0.1)
    assert reverse_returns(rewards, MASK, 0.0).equal(rewards)


@given(rollouts(), st.sampled_from([1.0, 0.9, 0.5, 0.0]), st.floats(0, 2))
def test_equals_a_loop_from_the_last_token(rollout, gamma, beta):
    rewards, kl, mask = rollout
    expected = returns_by_loop(rewards.tolist(), kl.tolist(), mask.tolist(), beta, gamma)
    torch.testing.assert_close(
        returns(rewards, kl, mask, beta, gamma), tensor(expected, dtype=F64), rtol=0, atol=1e-11
    )


@given(rollouts(), st.integers(0, 4), st.integers(0, 4))
@settings(max_examples=50)
def test_padding_width_changes_nothing(rollout, left, right):
    rewards, kl, mask = rollout
    pad = torch.nn.functional.pad
    wide = returns(rewards, pad(kl, (left, right), value=NAN), pad(mask, (left, right)), 0.3, 0.9)
    width = kl.shape[1]
    torch.testing.assert_close(wide[:, left : left + width], returns(rewards, kl, mask, 0.3, 0.9))


def test_long_completion_with_strong_discount_stays_exact():
    rewards = torch.zeros(1, 5000, dtype=F64)
    rewards[0, -1] = 1.0
    got = reverse_returns(rewards, torch.ones(1, 5000, dtype=torch.bool), 0.5)
    assert got[0, -11].item() == 0.5**10
    assert got.isfinite().all()


def test_float32_returns_are_accumulated_in_float64():
    rewards = torch.randn(2, 3000, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 3000, dtype=torch.bool)
    got = reverse_returns(rewards, mask, 1.0)
    assert got.dtype == torch.float32
    assert got.equal(reverse_returns(rewards.double(), mask, 1.0).float())


def test_rewards_and_kl_give_no_gradient():
    kl = KL.nan_to_num().requires_grad_()
    rewards = REWARDS.clone().requires_grad_()
    assert not token_rewards(rewards, kl, MASK, 0.1).requires_grad
    assert not reverse_returns(kl, MASK, 1.0).requires_grad


@pytest.mark.parametrize("garbage", [NAN, math.inf])
def test_garbage_at_masked_positions_is_not_carried_back(garbage):
    rewards = tensor([[1.0, garbage, 2.0, garbage]])
    mask = tensor([[True, False, True, False]])
    assert reverse_returns(rewards, mask, 0.5).tolist() == [[2.0, 0.0, 2.0, 0.0]]


def test_zero_width_is_accepted():
    empty = torch.zeros(2, 0)
    got = returns(torch.ones(2), empty, empty.bool(), 0.1, 1.0)
    assert got.shape == (2, 0)


@pytest.mark.parametrize("gamma", [-0.1, 1.1, NAN])
def test_gamma_outside_zero_to_one_is_refused(gamma):
    with pytest.raises(ValueError, match="takes gamma from 0 to 1, got"):
        reverse_returns(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool), gamma)
