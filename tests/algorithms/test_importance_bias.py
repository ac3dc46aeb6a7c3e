"""What each importance weight does to the expected gradient: exact sums over an enumerated policy."""

import pytest
import torch
from drifted_policy import (
    DELTAS,
    F64,
    KNOWN_BIAS,
    TOKENS,
    DriftedPolicy,
    N,
    T,
    ours,
    relative_error,
    rule_table,
)

from swift_rlx.algorithms import loo_advantages

UNTRUNCATED = 1e300


@pytest.fixture(scope="module")
def policy():
    return DriftedPolicy()


@pytest.fixture(scope="module")
def table(policy):
    return rule_table(policy)


@pytest.mark.parametrize("delta", DELTAS)
def test_the_untruncated_product_is_unbiased(policy, delta):
    weights = ours("sequence_product", UNTRUNCATED)
    got = policy.expected_gradient(policy.drifted(delta), weights)
    torch.testing.assert_close(got, policy.true_gradient(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", KNOWN_BIAS)
def test_biased_weights_have_their_known_bias(table, rule):
    assert table[rule] == pytest.approx(KNOWN_BIAS[rule], abs=6e-4)


def test_the_bias_of_token_weights_is_of_first_order_in_the_drift(policy):
    small, half = (
        policy.relative_error(policy.drifted(delta), ours("token_truncate")) for delta in (0.02, 0.01)
    )
    assert small / half == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("mode", ["none", "token_truncate", "token_mask", "prefix_product"])
def test_no_drift_no_bias(policy, mode):
    assert policy.relative_error(policy.drifted(0.0), ours(mode)) < 1e-12


# --- a completion by several policies --------------------------------------------------------------------------------


def switching(policy):
    """Two versions; the switch before a token depends on the token before it. Chance and recorded log-probs.

    Row by the number of tokens from the first version, [4, 81] and [4, 81, 4].
    """
    first, second = policy.drifted(0.3), policy.drifted(0.9)
    hazard = (0.2 + 0.4 * (TOKENS[:, :-1] == 2)).to(F64)  # before tokens 1, 2, 3
    chances, recorded = [], []
    for kept in range(1, T + 1):
        stays = (1 - hazard[:, : kept - 1]).prod(1)
        leaves = hazard[:, kept - 1] if kept < T else torch.ones(N, dtype=F64)
        logprobs = torch.cat([first[:, :kept], second[:, kept:]], 1)
        chances.append(logprobs.sum(1).exp() * stays * leaves)
        recorded.append(logprobs)
    return torch.stack(chances), torch.stack(recorded), first, second


def gradient_of_a_mixture(policy, chances, behaviors):
    """The expected RLOO gradient with product weights from what `behaviors` [4, 81, 4] claims."""
    logprobs = policy.logprobs()
    advantages = policy.rewards - (chances * policy.rewards).sum()
    weights = (logprobs.detach() - behaviors).sum(-1).exp()
    return policy.gradient((chances * weights * advantages * logprobs.sum(1)).sum())


def test_log_probs_recorded_per_token_are_unbiased_over_a_switch_of_versions(policy):
    chances, recorded, first, second = switching(policy)
    assert chances.sum().item() == pytest.approx(1.0, abs=1e-12)
    true = policy.true_gradient()
    got = gradient_of_a_mixture(policy, chances, recorded)
    torch.testing.assert_close(got, true, rtol=0, atol=1e-12)
    for one_version in (first, second):
        wrong = gradient_of_a_mixture(policy, chances, one_version.expand_as(recorded))
        assert relative_error(wrong, true) > 0.2


def test_candidates_of_one_prompt_may_come_from_different_policies(toy_policy):
    """Leave-one-out over a group of two, the second sampled at temperature 0.7."""
    logits = toy_policy.first.detach(), toy_policy.second.detach()

    def sampled_at(temperature):
        first = (logits[0] / temperature).log_softmax(-1)[:, None].expand(3, 3).flatten()
        return first + (logits[1] / temperature).log_softmax(-1).flatten()

    pairs = torch.cartesian_prod(torch.arange(9), torch.arange(9))
    behavior = torch.stack([sampled_at(1.0)[pairs[:, 0]], sampled_at(0.7)[pairs[:, 1]]], 1)
    ids = torch.arange(81).repeat_interleave(2)
    rewards = toy_policy.rewards[pairs].flatten()
    advantages = loo_advantages(rewards, ids, torch.ones(162, dtype=torch.bool)).view(81, 2)
    chance = behavior.sum(1).exp()
    true = toy_policy.gradient(toy_policy.objective(0.0))

    def expected(weigh):
        logprobs = toy_policy.logprobs().sum(1)[pairs]
        weights = weigh(logprobs.detach() - behavior)
        return toy_policy.gradient((chance[:, None] * weights * advantages * logprobs).sum() / 2)

    corrected = expected(torch.exp)
    torch.testing.assert_close(corrected, true, rtol=0, atol=1e-12)
    assert relative_error(expected(torch.ones_like), true) > 0.05
