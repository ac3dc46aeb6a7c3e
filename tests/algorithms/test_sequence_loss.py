"""sequence_ppo_loss: REINFORCE on whole completions, with a clip on the product ratio."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from swift_rlx.algorithms import sequence_ppo_loss

F64 = torch.float64
LOGPS = tensor([-10.0, -12.0, -8.0, -9.0], dtype=F64)
OLD = tensor([-10.3, -11.9, -8.0, -8.5], dtype=F64)
ADVANTAGES = tensor([0.75, -0.5833333333, 0.0833333333, -0.25], dtype=F64)


def over_tokens(sums, width, padding=1, fill=math.nan):
    """[B, width + padding] whose first `width` columns sum to `sums`; garbage in the padding."""
    shares = torch.arange(1, width + 1, dtype=F64)
    shares = shares / shares.sum()
    tokens = sums[:, None] * shares
    return torch.nn.functional.pad(tokens, (0, padding), value=fill)


def token_mask(rows, width, padding=1):
    return (torch.arange(width + padding) < width).expand(rows, -1)


@pytest.mark.parametrize("width", [1, 3, 7])
def test_four_completions_of_any_length(width):
    logprobs = over_tokens(LOGPS, width).requires_grad_()
    loss = sequence_ppo_loss(logprobs, over_tokens(OLD, width), ADVANTAGES, token_mask(4, width), 0.2, 0.2)
    ratios = tensor([1.3498588076, 0.9048374180, 1.0, 0.6065306597], dtype=F64)
    losses = tensor([-0.9, 0.5278218272, -0.0833333333, 0.2], dtype=F64)
    torch.testing.assert_close(loss.ratio_B, ratios, rtol=0, atol=1e-10)
    torch.testing.assert_close(loss.loss_B, losses, rtol=0, atol=1e-9)
    assert loss.loss_B.mean().item() == pytest.approx(-0.0638778765, abs=1e-9)
    assert loss.clipped_high_B.tolist() == [True, False, False, False]
    assert loss.clipped_low_B.tolist() == [False, False, False, True]

    loss.loss_B.mean().backward()
    gradient = tensor([0.0, 0.1319554568, -0.0208333333, 0.0], dtype=F64)
    expected = gradient[:, None].expand(4, width)
    torch.testing.assert_close(logprobs.grad[:, :width], expected, rtol=0, atol=1e-10)
    assert (logprobs.grad[:, width:] == 0).all()


def loss_by_loop(logprobs, old, advantages, mask, low, high):
    """Sequence by sequence, in Python floats."""
    losses = []
    for row, old_row, advantage, mask_row in zip(logprobs, old, advantages, mask, strict=True):
        if not any(mask_row):
            losses.append(0.0)
            continue
        log_ratio = math.fsum(a - b for a, b, m in zip(row, old_row, mask_row, strict=True) if m)
        ratio = math.exp(min(max(log_ratio, -20.0), 20.0))
        losses.append(-min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage))
    return losses


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32), st.floats(0, 0.9), st.floats(0, 2))
def test_equals_a_loop_over_sequences(rows, width, seed, low, high):
    draw = torch.Generator().manual_seed(seed)
    logprobs, old = (-torch.rand(rows, width, generator=draw, dtype=F64) * 2 for _ in range(2))
    advantages = torch.randn(rows, generator=draw, dtype=F64)
    mask = torch.rand(rows, width, generator=draw) < 0.7
    got = sequence_ppo_loss(logprobs, old, advantages, mask, low, high).loss_B
    want = loss_by_loop(logprobs.tolist(), old.tolist(), advantages.tolist(), mask.tolist(), low, high)
    torch.testing.assert_close(got, tensor(want, dtype=F64), rtol=1e-10, atol=1e-10)


def test_first_pass_is_reinforce_with_a_token_sum():
    """The longer completion gets the same gradient on each token: nothing is divided by its length."""
    logprobs = -torch.rand(2, 4, dtype=F64).requires_grad_()
    logprobs.retain_grad()
    mask = tensor([[1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    advantages = tensor([0.3, -2.0], dtype=F64)
    loss = sequence_ppo_loss(logprobs, logprobs.detach(), advantages, mask, 0.2, 0.2)
    assert loss.ratio_B.tolist() == [1.0, 1.0]
    assert not (loss.clipped_low_B | loss.clipped_high_B).any()
    loss.loss_B.sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages[:, None] * mask)


def test_ratio_is_the_product_and_not_the_geometric_mean():
    logprobs, old = torch.full((1, 10), -1.0, dtype=F64), torch.full((1, 10), -1.1, dtype=F64)
    loss = sequence_ppo_loss(logprobs, old, torch.ones(1, dtype=F64), token_mask(1, 10, 0), 0.2, 0.2)
    assert loss.ratio_B.item() == pytest.approx(math.e)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "has_gradient"),
    [(0.3, 1.0, False), (0.3, -1.0, True), (-0.3, -1.0, False), (-0.3, 1.0, True), (0.1, 1.0, True)],
)
def test_gradient_is_removed_on_the_clipped_side_only(log_ratio, advantage, has_gradient):
    logprobs = tensor([[log_ratio]], dtype=F64, requires_grad=True)
    loss = sequence_ppo_loss(
        logprobs, torch.zeros(1, 1, dtype=F64), tensor([advantage], dtype=F64), token_mask(1, 1, 0), 0.2, 0.2
    )
    loss.loss_B.sum().backward()
    assert (logprobs.grad.item() != 0) == has_gradient
    assert (loss.clipped_low_B | loss.clipped_high_B).item() == (not has_gradient)


def test_bounds_are_separate():
    logprobs = tensor([[math.log(1.25)], [math.log(0.75)]], dtype=F64)
    zeros = torch.zeros(2, 1, dtype=F64)
    advantages = tensor([1.0, -1.0], dtype=F64)
    loss = sequence_ppo_loss(logprobs, zeros, advantages, token_mask(2, 1, 0), 0.2, 0.28)
    assert loss.clipped_high_B.tolist() == [False, False]
    assert loss.clipped_low_B.tolist() == [False, True]
    torch.testing.assert_close(loss.loss_B, tensor([-1.25, 0.8], dtype=F64))


@pytest.mark.parametrize("difference", [-1e4, -50.0, 50.0, 1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_ratios_stay_finite(difference, advantage):
    logprobs = tensor([[difference]], requires_grad=True)
    loss = sequence_ppo_loss(logprobs, torch.zeros(1, 1), tensor([advantage]), token_mask(1, 1, 0), 0.2, 0.2)
    loss.loss_B.sum().backward()
    assert loss.loss_B.isfinite().all()
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_row_without_a_sampled_token_has_no_loss_and_no_gradient(garbage):
    logprobs = tensor([[garbage, garbage], [-1.0, garbage]], requires_grad=True)
    old = tensor([[garbage, garbage], [-1.5, garbage]])
    mask = tensor([[False, False], [True, False]])
    loss = sequence_ppo_loss(logprobs, old, tensor([garbage, 1.0]), mask, 0.2, 0.2)
    loss.loss_B.sum().backward()
    assert loss.loss_B.tolist() == pytest.approx([0.0, -1.2])
    assert loss.ratio_B[0] == 1
    assert not loss.clipped_high_B[0]
    assert logprobs.grad.tolist() == [[0, 0], [0, 0]]


def test_old_logprobs_and_advantages_take_no_gradient():
    logprobs = torch.full((1, 2), -1.0, requires_grad=True)
    old = torch.full((1, 2), -1.0, requires_grad=True)
    advantages = torch.ones(1, requires_grad=True)
    loss = sequence_ppo_loss(logprobs, old, advantages, token_mask(1, 2, 0), 0.2, 0.2)
    loss.loss_B.sum().backward()
    assert logprobs.grad is not None
    assert old.grad is None
    assert advantages.grad is None
    assert not loss.ratio_B.requires_grad


def test_gradcheck_away_from_the_clip_edges():
    old = over_tokens(OLD, 3, padding=0)
    logprobs = over_tokens(LOGPS, 3, padding=0).requires_grad_()
    mask = tensor([[1, 1, 1], [1, 1, 0], [1, 0, 1], [0, 0, 0]]).bool()
    assert torch.autograd.gradcheck(
        lambda x: sequence_ppo_loss(x, old, ADVANTAGES, mask, 0.2, 0.2).loss_B, logprobs
    )


@given(st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=30)
def test_padding_and_row_order_change_nothing(seed, padding):
    draw = torch.Generator().manual_seed(seed)
    logprobs, old = (-torch.rand(5, 3, generator=draw, dtype=F64) for _ in range(2))
    advantages = torch.randn(5, generator=draw, dtype=F64)
    mask = torch.rand(5, 3, generator=draw) < 0.7
    plain = sequence_ppo_loss(logprobs, old, advantages, mask, 0.2, 0.2).loss_B

    def wide(tokens, value):
        return torch.nn.functional.pad(tokens.flip(0), (0, padding), value=value)

    moved = sequence_ppo_loss(
        wide(logprobs, math.nan), wide(old, math.inf), advantages.flip(0), wide(mask, False), 0.2, 0.2
    ).loss_B
    torch.testing.assert_close(moved.flip(0), plain, rtol=0, atol=1e-12)


def test_bfloat16_log_probs_are_summed_in_float32():
    logprobs = torch.full((1, 3000), -1.0, dtype=torch.bfloat16)
    mask = torch.ones(1, 3000, dtype=torch.bool)
    loss = sequence_ppo_loss(logprobs, logprobs.float() - 1e-4, torch.ones(1), mask, 0.2, 9.0)
    assert loss.loss_B.dtype == torch.float32
    assert loss.ratio_B.item() == pytest.approx(math.exp(0.3), rel=1e-3)


@pytest.mark.parametrize(
    ("low", "high"), [(-0.1, 0.2), (1.1, 0.2), (0.2, -0.1), (math.nan, 0.2), (0.2, math.nan)]
)
def test_clip_bounds_out_of_range_are_refused(low, high):
    zeros = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="epsilon_low from 0 to 1 and epsilon_high of at least 0"):
        sequence_ppo_loss(zeros, zeros, torch.ones(1), token_mask(1, 1, 0), low, high)
