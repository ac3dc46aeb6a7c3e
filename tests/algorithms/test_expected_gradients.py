"""Exact expectations of every estimator on an enumerable policy, against autograd of the objective.

Unbiased estimators must match to rounding; biased ones are pinned to their known bias.
"""

import itertools

import pytest
import torch
from torch import tensor

from swift_rlx.algorithms import (
    group_centered,
    k1,
    loo_advantages,
    masked_whiten,
    reverse_returns,
    sequence_kl,
    sequence_ppo_loss,
    token_ppo_loss,
    token_rewards,
)

F64 = torch.float64
BETA = 0.1


def expected_group_gradient(policy, advantages_of, *, group_size, beta=BETA, keep=None, divide_by_kept=True):
    """Expected gradient over all 9^K groups (and all ways to lose members), and the probability of >= 2 kept.

    `keep` [9] is the probability that a sequence survives. Groups with fewer than two survivors contribute 0.
    """
    groups = torch.cartesian_prod(*[torch.arange(9)] * group_size)
    ids = torch.arange(len(groups)).repeat_interleave(group_size)
    keep = torch.ones(9, dtype=F64) if keep is None else keep
    rewards = policy.rewards - beta * sequence_kl(
        policy.logprobs().detach(), policy.ref_logprobs, policy.mask
    )
    total, usable = torch.zeros((), dtype=F64), 0.0
    patterns = itertools.product([True, False], repeat=group_size)
    for pattern in [p for p in patterns if sum(p) >= 2]:
        kept = tensor(pattern).expand(groups.shape)
        chance = policy.probabilities()[groups].prod(1) * torch.where(
            kept, keep[groups], 1 - keep[groups]
        ).prod(1)
        if chance.sum() == 0:
            continue
        members = groups.flatten()
        advantages = advantages_of(rewards[members], ids, kept.flatten())
        logprobs = policy.logprobs()[members]
        mask = kept.flatten()[:, None].expand(-1, 2)
        loss = sequence_ppo_loss(logprobs, logprobs.detach(), advantages, mask, 0.2, 0.2).loss_B
        per_group = loss.view(groups.shape).sum(1) / (sum(pattern) if divide_by_kept else group_size)
        total = total - (chance * per_group).sum()
        usable += chance.sum().item()
    return policy.gradient(total), usable


def relative_error(got, true):
    return ((got - true).norm() / true.norm()).item()


def cosine(got, true):
    return torch.cosine_similarity(got, true, dim=0).item()


def test_objective_and_its_gradient(toy_policy):
    objective = toy_policy.objective(BETA)
    assert objective.item() == pytest.approx(0.3654085935, abs=1e-10)
    expected = [0.0249107414, -0.0337735398, 0.0088627983, 0.0614412114, -0.0689269197, 0.0074857084]
    expected += [-0.0039426091, 0.0421726583, -0.0382300492, -0.0355410834, -0.0055463220, 0.0410874053]
    torch.testing.assert_close(
        toy_policy.gradient(objective), tensor(expected, dtype=F64), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("group_size", [2, 3])
def test_rloo_is_unbiased(toy_policy, group_size):
    true = toy_policy.gradient(toy_policy.objective(BETA))
    got, _ = expected_group_gradient(toy_policy, loo_advantages, group_size=group_size)
    torch.testing.assert_close(got, true, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("group_size", "factor"), [(2, 0.5), (3, 2 / 3)])
def test_group_mean_is_rloo_scaled_down(toy_policy, group_size, factor):
    true = toy_policy.gradient(toy_policy.objective(BETA))
    got, _ = expected_group_gradient(toy_policy, group_centered, group_size=group_size)
    torch.testing.assert_close(got, factor * true, rtol=0, atol=1e-12)


def test_dividing_by_the_group_spread_bends_the_direction(toy_policy):
    def grpo(rewards, ids, valid):
        grouped = rewards.view(-1, 3)
        return ((grouped - grouped.mean(1, True)) / (grouped.std(1, keepdim=True) + 1e-4)).flatten()

    true = toy_policy.gradient(toy_policy.objective(BETA))
    got, _ = expected_group_gradient(toy_policy, grpo, group_size=3)
    assert cosine(got, true) == pytest.approx(0.99006, abs=1e-5)


def test_random_failures_leave_rloo_unbiased_when_the_kept_rows_are_counted(toy_policy):
    true = toy_policy.gradient(toy_policy.objective(BETA))
    keep = torch.full((9,), 0.7, dtype=F64)
    got, usable = expected_group_gradient(toy_policy, loo_advantages, group_size=3, keep=keep)
    assert usable == pytest.approx(0.784)
    torch.testing.assert_close(got / usable, true, rtol=0, atol=1e-12)


def test_dividing_by_the_full_group_size_would_shrink_the_gradient(toy_policy):
    true = toy_policy.gradient(toy_policy.objective(BETA))
    keep = torch.full((9,), 0.7, dtype=F64)
    got, _ = expected_group_gradient(
        toy_policy, loo_advantages, group_size=3, keep=keep, divide_by_kept=False
    )
    torch.testing.assert_close(got, 0.637 * true, rtol=0, atol=1e-12)


def test_failures_that_depend_on_the_content_bias_the_gradient(toy_policy):
    """Half of the completions that end in token 2 are lost."""
    true = toy_policy.gradient(toy_policy.objective(0.0))
    keep = torch.ones(3, 3, dtype=F64)
    keep[:, 2] = 0.5
    got, usable = expected_group_gradient(
        toy_policy, loo_advantages, group_size=3, beta=0.0, keep=keep.flatten()
    )
    assert relative_error(got / usable, true) == pytest.approx(0.346, abs=1e-3)
    assert cosine(got, true) == pytest.approx(0.940, abs=1e-3)


def expected_token_gradient(policy, gamma):
    """Expected REINFORCE gradient with token returns, one completion a prompt, no baseline."""
    logprobs = policy.logprobs()
    kl = k1(logprobs.detach(), policy.ref_logprobs, policy.mask)
    returns = reverse_returns(token_rewards(policy.rewards, kl, policy.mask, BETA), policy.mask, gamma)
    loss = token_ppo_loss(logprobs, logprobs.detach(), returns, policy.mask, 0.2, 0.2).loss_BT
    return policy.gradient(-(policy.probabilities() * loss.sum(1)).sum())


def test_token_returns_without_discount_are_unbiased(toy_policy):
    true = toy_policy.gradient(toy_policy.objective(BETA))
    torch.testing.assert_close(expected_token_gradient(toy_policy, 1.0), true, rtol=0, atol=1e-12)


def test_discounting_biases_the_gradient(toy_policy):
    true = toy_policy.gradient(toy_policy.objective(BETA))
    assert relative_error(expected_token_gradient(toy_policy, 0.9), true) == pytest.approx(0.0396, abs=5e-5)


@pytest.mark.parametrize(("batch_size", "error"), [(2, 0.471), (4, 0.187), (8, 0.078)])
def test_global_normalization_is_biased_in_scale_and_less_so_for_larger_batches(batch_size, error):
    """Three-armed bandit, all batches of size N as multisets of arms; against grad J / sigma."""
    p, r = tensor([0.5, 0.3, 0.2], dtype=F64), tensor([1.0, 0.0, 0.4], dtype=F64)
    mean = (p * r).sum()
    true = p * (r - mean) / (p * (r - mean).square()).sum().sqrt()
    estimate = torch.zeros(3, dtype=F64)
    for arms in itertools.combinations_with_replacement(range(3), batch_size):
        counts = torch.bincount(tensor(arms), minlength=3).double()
        log_orders = torch.lgamma(tensor(batch_size + 1.0, dtype=F64)) - torch.lgamma(counts + 1).sum()
        chance = (log_orders + (counts * p.log()).sum()).exp()
        values = r[list(arms)][:, None]
        advantages = masked_whiten(values, torch.ones_like(values, dtype=torch.bool))
        estimate += chance * (advantages * (torch.eye(3, dtype=F64)[list(arms)] - p)).mean(0)
    assert relative_error(estimate, true) == pytest.approx(error, abs=5e-4)
    assert cosine(estimate, true) > 0.9995


def test_one_completion_a_prompt_without_kl_is_the_whitened_reward(toy_policy):
    mask = toy_policy.mask
    kl = k1(toy_policy.logprobs().detach(), toy_policy.ref_logprobs, mask)
    returns = reverse_returns(token_rewards(toy_policy.rewards, kl, mask, 0.0), mask, 1.0)
    broadcast = toy_policy.rewards[:, None].expand(9, 2)
    torch.testing.assert_close(masked_whiten(returns, mask), masked_whiten(broadcast, mask))
