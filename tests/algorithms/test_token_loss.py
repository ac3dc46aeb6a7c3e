"""token_ppo_loss: PPO's clip, token by token."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor

from swift_rlx.algorithms import token_ppo_loss

F64 = torch.float64


def test_four_tokens():
    """Ratios 1.105, 1.492, 1, 0.905 with a range of +-0.2: only the second token is clipped."""
    logprobs = tensor([[-1.0, -0.5, -2.0, -0.3]], dtype=F64, requires_grad=True)
    old = tensor([[-1.1, -0.9, -2.0, -0.2]], dtype=F64)
    advantages = tensor([[1.0, 1.0, -1.0, -1.0]], dtype=F64)
    loss = token_ppo_loss(logprobs, old, advantages, torch.ones(1, 4, dtype=torch.bool), 0.2, 0.2)
    ratios = [1.1051709181, 1.4918246976, 1.0, 0.9048374180]
    assert loss.ratio_BT[0].tolist() == pytest.approx(ratios, abs=1e-9)
    assert loss.loss_BT[0].tolist() == pytest.approx([-1.1051709181, -1.2, 1.0, 0.9048374180], abs=1e-9)
    assert loss.clipped_high_BT.tolist() == [[False, True, False, False]]
    assert loss.clipped_low_BT.tolist() == [[False, False, False, False]]
    loss.loss_BT.sum().backward()
    assert logprobs.grad[0].tolist() == pytest.approx([-1.1051709181, 0.0, 1.0, 0.9048374180], abs=1e-9)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32), st.floats(0, 0.9), st.floats(0, 2))
def test_equals_a_loop_over_tokens(rows, width, seed, low, high):
    draw = torch.Generator().manual_seed(seed)
    logprobs, old = (-torch.rand(rows, width, generator=draw, dtype=F64) * 2 for _ in range(2))
    advantages = torch.randn(rows, width, generator=draw, dtype=F64)
    mask = torch.rand(rows, width, generator=draw) < 0.7
    got = token_ppo_loss(logprobs, old, advantages, mask, low, high).loss_BT
    for b in range(rows):
        for t in range(width):
            want = 0.0
            if mask[b, t]:
                ratio = math.exp(logprobs[b, t].item() - old[b, t].item())
                advantage = advantages[b, t].item()
                want = -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
            assert got[b, t].item() == pytest.approx(want, rel=1e-12, abs=1e-12)


def test_each_token_has_its_own_ratio():
    """The product of the two ratios is 1, yet both tokens are clipped."""
    logprobs = tensor([[0.5, -0.5]], dtype=F64)
    advantages = tensor([[1.0, -1.0]], dtype=F64)
    mask = torch.ones(1, 2, dtype=torch.bool)
    loss = token_ppo_loss(logprobs, torch.zeros(1, 2, dtype=F64), advantages, mask, 0.2, 0.2)
    assert loss.clipped_high_BT.tolist() == [[True, False]]
    assert loss.clipped_low_BT.tolist() == [[False, True]]


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_garbage_under_the_mask_reaches_neither_loss_nor_gradient(garbage):
    logprobs = tensor([[-1.0, garbage]], requires_grad=True)
    old, advantages = tensor([[-1.0, garbage]]), tensor([[2.0, garbage]])
    loss = token_ppo_loss(logprobs, old, advantages, tensor([[True, False]]), 0.2, 0.2)
    loss.loss_BT.sum().backward()
    assert loss.loss_BT.tolist() == [[-2.0, 0.0]]
    assert loss.ratio_BT.tolist() == [[1.0, 1.0]]
    assert not (loss.clipped_low_BT | loss.clipped_high_BT).any()
    assert logprobs.grad.tolist() == [[-2.0, 0.0]]


@pytest.mark.parametrize("difference", [-1e4, 1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_ratios_stay_finite(difference, advantage):
    logprobs = tensor([[difference]], requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    loss = token_ppo_loss(logprobs, torch.zeros(1, 1), tensor([[advantage]]), mask, 0.2, 0.2)
    loss.loss_BT.sum().backward()
    assert loss.loss_BT.isfinite().all()
    assert logprobs.grad.isfinite().all()


def test_old_logprobs_and_advantages_take_no_gradient():
    leaves = [torch.full((1, 2), -1.0, requires_grad=True) for _ in range(3)]
    loss = token_ppo_loss(*leaves, torch.ones(1, 2, dtype=torch.bool), 0.2, 0.2)
    loss.loss_BT.sum().backward()
    assert [leaf.grad is not None for leaf in leaves] == [True, False, False]
    assert not loss.ratio_BT.requires_grad


def test_gradcheck_away_from_the_clip_edges():
    logprobs = tensor([[-1.0, -0.5, -2.0], [-0.3, -0.9, -1.3]], dtype=F64, requires_grad=True)
    old = tensor([[-1.1, -0.9, -2.05], [-0.2, -0.4, -1.0]], dtype=F64)
    advantages = tensor([[1.0, 1.0, -1.0], [-1.0, -0.5, 0.7]], dtype=F64)
    mask = tensor([[True, True, True], [True, True, False]])
    assert torch.autograd.gradcheck(
        lambda x: token_ppo_loss(x, old, advantages, mask, 0.2, 0.27).loss_BT, logprobs
    )


def test_clip_bounds_out_of_range_are_refused():
    zeros, mask = torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"got epsilon_low 0.2 and epsilon_high -0.2"):
        token_ppo_loss(zeros, zeros, zeros, mask, 0.2, -0.2)
