"""Importance weights: hand-worked vectors, bounds, masks, extreme ratios, detachment."""

import math

import pytest
import torch
from torch import tensor

from swift_rlx.algorithms import (
    CORRECTIONS,
    behavior_log_ratio,
    importance_weights,
    k3_row_filter,
    off_policy_sequence_mask,
    sequence_ppo_loss,
    sequence_product,
    token_ppo_loss,
)

F64 = torch.float64
LOG_RATIOS = tensor([[0.1, -0.2, 0.05], [1.0, -1.2, 0.3], [2.0, 0.1, math.nan]], dtype=F64)
MASK = tensor([[True] * 3, [True] * 3, [True, True, False]])
BEHAVIOR = tensor([[-1.0, -2.0, -0.5], [-1.5, -0.1, -3.0], [-2.5, -1.0, math.inf]], dtype=F64)
PROXIMAL = BEHAVIOR + LOG_RATIOS
TRUNCATING = ["token_truncate", "token_mask", "sequence_product", "prefix_product"]

EXPECTED = {
    "none": [1, 1, 1],
    "token_truncate": [
        [1.1051709181, 0.8187307531, 1.0512710964],
        [2, 0.3011942119, 1.3498588076],
        [2, 1.1051709181, 1],
    ],
    "token_mask": [
        [1.1051709181, 0.8187307531, 1.0512710964],
        [0, 0.3011942119, 1.3498588076],
        [0, 1.1051709181, 1],
    ],
    "two_sided_mask": [
        [1.1051709181, 0.8187307531, 1.0512710964],
        [2.7182818285, 0, 1.3498588076],
        [0, 1.1051709181, 1],
    ],
    "sequence_product": [0.9512294245, 1.1051709181, 2],
    "prefix_product": [
        [1.1051709181, 0.9048374180, 0.9512294245],
        [2, 0.8187307531, 1.1051709181],
        [2, 2, 2],
    ],
}


@pytest.mark.parametrize("mode", CORRECTIONS)
def test_weights_of_a_hand_worked_batch(mode):
    found = importance_weights(mode, PROXIMAL, BEHAVIOR, MASK)
    torch.testing.assert_close(found.weights, tensor(EXPECTED[mode], dtype=F64), rtol=0, atol=1e-9)


def test_the_untruncated_product():
    product = sequence_product(behavior_log_ratio(PROXIMAL, BEHAVIOR, MASK), math.inf).weights
    torch.testing.assert_close(
        product, tensor([0.9512294245, 1.1051709181, 8.1661699126], dtype=F64), rtol=0, atol=1e-9
    )


def test_each_side_says_where_it_clipped():
    one_sided = importance_weights("token_truncate", PROXIMAL, BEHAVIOR, MASK)
    assert one_sided.clipped_high.nonzero().tolist() == [[1, 0], [2, 0]]
    assert not one_sided.clipped_low.any()
    both = importance_weights("two_sided_mask", PROXIMAL, BEHAVIOR, MASK)
    assert both.clipped_high.nonzero().tolist() == [[2, 0]]
    assert both.clipped_low.nonzero().tolist() == [[1, 1]]
    rows = importance_weights("sequence_product", PROXIMAL, BEHAVIOR, MASK)
    assert rows.clipped_high.tolist() == [False, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("mode", CORRECTIONS)
def test_equal_policies_give_exactly_one(mode, dtype):
    logprobs = torch.randn(5, 40, dtype=dtype) - 3
    weights = importance_weights(mode, logprobs, logprobs.clone(), torch.rand(5, 40) < 0.8).weights
    assert weights.dtype == dtype
    assert weights.eq(1).all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("mode", CORRECTIONS)
def test_ratios_of_any_size_give_finite_weights_within_the_bounds(mode, dtype):
    behavior = torch.zeros(4, 3, dtype=dtype)
    proximal = tensor([[1e4, 1e4, 1e4], [-1e4, -1e4, -1e4], [1e4, -1e4, 0], [0, 0, 0]], dtype=dtype)
    weights = importance_weights(mode, proximal, behavior, torch.ones(4, 3, dtype=torch.bool)).weights
    assert weights.isfinite().all()
    assert (weights >= 0).all()
    assert (weights <= 2.0001).all()
    assert weights[3].eq(1).all()


@pytest.mark.parametrize("mode", [mode for mode in CORRECTIONS if mode != "none"])
def test_a_completion_of_one_token_has_the_same_weight_on_every_level(mode):
    inside = tensor([[0.3], [-0.4]], dtype=F64)
    weights = importance_weights(mode, inside, torch.zeros_like(inside), torch.ones(2, 1, dtype=torch.bool))
    torch.testing.assert_close(weights.weights.flatten(), inside.exp().flatten())


@pytest.mark.parametrize("mode", TRUNCATING)
def test_the_cap_is_the_largest_weight(mode):
    proximal = tensor([[0.9, 0.9]], dtype=F64)
    args = proximal, torch.zeros_like(proximal), torch.ones(1, 2, dtype=torch.bool)
    loose = importance_weights(mode, *args, cap=50.0)
    assert not loose.clipped_high.any()
    assert loose.weights.max() > 1.5
    assert importance_weights(mode, *args, cap=1.5).weights.max() <= 1.5 + 1e-12


@pytest.mark.parametrize("mode", CORRECTIONS)
def test_no_gradient_flows_into_the_weights(mode):
    proximal = torch.zeros(2, 3, dtype=F64, requires_grad=True)
    behavior = torch.full((2, 3), 0.1, dtype=F64, requires_grad=True)
    weights = importance_weights(mode, proximal, behavior, torch.ones(2, 3, dtype=torch.bool)).weights
    assert not weights.requires_grad


def test_prefixes_run_through_masked_positions():
    proximal = tensor([[0.1, 9.0, 0.2]], dtype=F64)
    mask = tensor([[True, False, True]])
    weights = importance_weights("prefix_product", proximal, torch.zeros_like(proximal), mask).weights
    assert weights[0, 2].item() == pytest.approx(math.exp(0.3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "geometric"}, "takes one of none, token_truncate, .* got 'geometric'"),
        ({"cap": 0.5}, "a cap of at least 1 .* got cap 0.5"),
        ({"cap": math.inf}, "finite"),
        ({"bounds": (0.0, 5.0)}, r"bounds \(0.0, 5.0\)"),
        ({"bounds": (0.5, 0.9)}, r"bounds \(0.5, 0.9\)"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        importance_weights(**{"mode": "token_truncate", **options}, **_batch())


def _batch():
    return {"proximal_BT": PROXIMAL, "behavior_BT": BEHAVIOR, "mask_BT": MASK}


# --- decoupled PPO ---------------------------------------------------------------------------------------------------

CURRENT = [-1.0, -0.5, -2.0, -0.3]
PROX = tensor([[-1.1, -0.9, -2.0, -0.2]], dtype=F64)
BEH = tensor([[-1.4, -0.8, -1.0, -0.25]], dtype=F64)
ADVANTAGES = tensor([[1.0, 1.0, -1.0, -1.0]], dtype=F64)
ALL = torch.ones(1, 4, dtype=torch.bool)


def test_decoupled_ppo_of_a_hand_worked_row():
    current = tensor([CURRENT], dtype=F64, requires_grad=True)
    weights = importance_weights("token_truncate", PROX, BEH, ALL).weights
    expected = tensor([[1.3498588076, 0.9048374180, 0.3678794412, 1.0512710964]], dtype=F64)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-9)
    loss = token_ppo_loss(current, PROX, ADVANTAGES, ALL, 0.2, 0.2)
    torch.testing.assert_close(
        loss.ratio_BT,
        tensor([[1.1051709181, 1.4918246976, 1, 0.9048374180]], dtype=F64),
        rtol=0,
        atol=1e-9,
    )
    weighted = loss.loss_BT * weights
    torch.testing.assert_close(
        weighted.detach(),
        tensor([[-1.4918246976, -1.0858049016, 0.3678794412, 0.9512294246]], dtype=F64),
        rtol=0,
        atol=1e-9,
    )
    weighted.mean().backward()
    assert weighted.mean().item() == pytest.approx(-0.3146301834, abs=1e-9)
    torch.testing.assert_close(
        current.grad, tensor([[-0.3729561744, 0, 0.0919698603, 0.2378073561]], dtype=F64), rtol=0, atol=1e-9
    )


def test_a_clip_around_the_behavior_policy_lets_three_of_four_tokens_learn_nothing():
    current = tensor([CURRENT], dtype=F64, requires_grad=True)
    loss = token_ppo_loss(current, BEH, ADVANTAGES, ALL, 0.2, 0.2).loss_BT.mean()
    loss.backward()
    assert loss.item() == pytest.approx(-0.1621926439, abs=1e-9)
    torch.testing.assert_close(current.grad, tensor([[0, 0, 0, 0.2378073561]], dtype=F64), rtol=0, atol=1e-9)


# --- weights per token in RLOO's sequence ratio ----------------------------------------------------------------------


def test_token_weights_in_the_exponent_weigh_each_tokens_gradient():
    old = torch.randn(6, 5, dtype=F64) - 2
    mask = torch.rand(6, 5) < 0.8
    advantages = torch.randn(6, dtype=F64)
    weights = torch.rand(6, 5, dtype=F64) * 2
    current = old.clone().requires_grad_()
    loss = sequence_ppo_loss(current, old, advantages, mask, 0.2, 0.2, weights)
    loss.loss_B.sum().backward()
    torch.testing.assert_close(current.grad, -(advantages[:, None] * weights).where(mask, 0.0))
    assert not loss.clipped_high_B.any()


def test_token_weights_of_one_change_no_bit():
    old = torch.randn(6, 5) - 2
    current = (old + 0.1 * torch.randn(6, 5)).requires_grad_()
    mask, advantages = torch.rand(6, 5) < 0.8, torch.randn(6)
    plain = sequence_ppo_loss(current, old, advantages, mask, 0.2, 0.2)
    ones = sequence_ppo_loss(current, old, advantages, mask, 0.2, 0.2, torch.ones(6, 5))
    assert plain.loss_B.equal(ones.loss_B)
    gradients = [torch.autograd.grad(each.loss_B.sum(), current)[0] for each in (plain, ones)]
    assert gradients[0].equal(gradients[1])


def test_the_weighted_sequence_loss_passes_gradcheck():
    old, weights = torch.randn(3, 4, dtype=F64) - 2, torch.rand(3, 4, dtype=F64)
    advantages, mask = tensor([1.0, -0.5, 0.3], dtype=F64), torch.ones(3, 4, dtype=torch.bool)
    current = (old + 0.01 * torch.randn(3, 4, dtype=F64)).requires_grad_()

    def loss(logprobs):
        return sequence_ppo_loss(logprobs, old, advantages, mask, 0.2, 0.2, weights).loss_B

    assert torch.autograd.gradcheck(loss, current)


# --- row filters -----------------------------------------------------------------------------------------------------


def test_the_sequence_mask_decides_for_the_whole_row():
    """Advantages of both signs in one row: slime's decision per token kept a part of it."""
    behavior, current = torch.ones(1, 3), torch.zeros(1, 3)
    advantages = tensor([[-0.5, 0.25, -0.25]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert off_policy_sequence_mask(current, behavior, advantages, mask, 0.1).tolist() == [False]
    assert off_policy_sequence_mask(current, behavior, -advantages, mask, 0.1).tolist() == [True]
    assert off_policy_sequence_mask(current, behavior, advantages, mask, 1.0).tolist() == [True]
    assert off_policy_sequence_mask(behavior, current, advantages, mask, 0.1).tolist() == [True]


def test_a_row_without_tokens_is_kept_by_both_filters():
    nothing, values = torch.zeros(1, 2, dtype=torch.bool), torch.full((1, 2), math.nan)
    assert off_policy_sequence_mask(values, values, values, nothing, 0.1).tolist() == [True]
    assert k3_row_filter(values, values, nothing, 0.01).tolist() == [True]


def test_the_k3_filter_drops_rows_by_their_mean_distance():
    mean_k3 = [math.exp(x) - 1 - x for x in (0.1, -0.2, 0.05)]
    distance = sum(mean_k3) / 3
    args = PROXIMAL, BEHAVIOR, MASK
    assert k3_row_filter(*args, distance + 1e-9).tolist() == [True, False, False]
    assert k3_row_filter(*args, distance - 1e-9).tolist() == [False, False, False]
    assert k3_row_filter(*args, 100.0).tolist() == [True, True, True]
    assert k3_row_filter(PROXIMAL * 0 + 1e4, BEHAVIOR * 0, MASK, 100.0).tolist() == [False] * 3
