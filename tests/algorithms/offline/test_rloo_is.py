"""RLOO on stored completions: exact expectations of what is unbiased, the known bias of the rest."""

import dataclasses

import pytest
import torch
from drifted_policy import DELTAS, KNOWN_BIAS, MASK, DriftedPolicy, N, relative_error
from torch import tensor

from swift_rlx.algorithms.offline import MicroBatch, RLOOWithImportance, StoredRows

F64 = torch.float64
UNTRUNCATED = 1e300


def expected_loss(objective, rewards, logprobs, behaviors, mask):
    """Expectation of the objective's loss over all pairs of completions; `behaviors` [2, N, T], one per member."""
    size = len(rewards)
    pairs = torch.cartesian_prod(torch.arange(size), torch.arange(size))
    members = pairs.flatten()
    rows = StoredRows(
        group_ids_B=torch.arange(len(pairs)).repeat_interleave(2),
        tokens_B=mask.sum(1)[members],
        valid_B=torch.ones(len(members), dtype=torch.bool),
        rewards_B=rewards[members],
    )
    chance = behaviors[0].sum(1).exp()[pairs[:, 0]] * behaviors[1].sum(1).exp()[pairs[:, 1]]
    plan = objective.plan(rows)
    weighed = plan.coefficients_B * chance.repeat_interleave(2) * len(pairs)
    recorded = torch.stack([behaviors[0][pairs[:, 0]], behaviors[1][pairs[:, 1]]], 1).flatten(0, 1)
    part = MicroBatch(torch.arange(len(members)), mask[members], logprobs[members], recorded)
    return dataclasses.replace(plan, coefficients_B=weighed).loss(part).loss


@pytest.fixture(scope="module")
def policy():
    return DriftedPolicy()


def error_of(policy, delta, **settings):
    behavior = policy.drifted(delta)
    loss = expected_loss(
        RLOOWithImportance(**settings), policy.rewards, policy.logprobs(), behavior.expand(2, N, -1), MASK
    )
    return relative_error(policy.gradient(-loss), policy.true_gradient())


@pytest.mark.parametrize("delta", [DELTAS[0], DELTAS[-1]])
def test_the_untruncated_product_is_unbiased(policy, delta):
    assert error_of(policy, delta, cap=UNTRUNCATED) < 1e-12


@pytest.mark.parametrize(
    "rule", ["none", "token_truncate", "two_sided_mask", "prefix_product", "sequence_product"]
)
def test_other_weights_have_their_known_bias(policy, rule):
    assert error_of(policy, DELTAS[2], correction=rule) == pytest.approx(KNOWN_BIAS[rule][2], abs=6e-4)


def test_candidates_of_a_prompt_may_have_been_sampled_at_different_temperatures(toy_policy):
    def sampled_at(temperature):
        first = (toy_policy.first.detach() / temperature).log_softmax(-1).repeat_interleave(3)
        second = (toy_policy.second.detach() / temperature).log_softmax(-1).flatten()
        return torch.stack([first, second], 1)

    behaviors = torch.stack([sampled_at(0.5), sampled_at(1.4)])
    true = toy_policy.gradient(toy_policy.objective(0.0))

    def expected(**settings):
        objective = RLOOWithImportance(**settings)
        loss = expected_loss(objective, toy_policy.rewards, toy_policy.logprobs(), behaviors, toy_policy.mask)
        return toy_policy.gradient(-loss)

    torch.testing.assert_close(expected(cap=UNTRUNCATED), true, rtol=0, atol=1e-12)
    assert relative_error(expected(correction="none"), true) > 0.1


ROWS = StoredRows(
    group_ids_B=tensor([0, 0, 0]),
    tokens_B=tensor([2, 1, 2]),
    valid_B=tensor([True, True, True]),
    rewards_B=tensor([1.0, 0.0, 0.5], dtype=F64),
)
BATCH_MASK = tensor([[1, 1], [1, 0], [1, 1]]).bool()
LOGPROBS = tensor([[-1.0, -2.0], [-0.5, 9.0], [-1.0, -1.0]], dtype=F64)
BEHAVIOR = tensor([[-1.5, -2.2], [-0.1, 9.0], [-0.5, -1.0]], dtype=F64)  # log-ratios .7, -.4, -.5


def test_three_completions_by_hand():
    logprobs = LOGPROBS.clone().requires_grad_()
    plan = RLOOWithImportance().plan(ROWS)
    found = plan.loss(MicroBatch(torch.arange(3), BATCH_MASK, logprobs, BEHAVIOR))
    advantages = tensor([0.75, -0.75, 0.0], dtype=F64)
    weights = tensor([0.7, -0.4, -0.5], dtype=F64).exp().clamp(max=2)  # e^.7 = 2.014 is cut
    assert found.loss.item() == pytest.approx(-(weights * advantages).sum().item() / 3, abs=1e-12)
    found.loss.backward()
    expected = -(weights * advantages / 3)[:, None] * BATCH_MASK
    torch.testing.assert_close(logprobs.grad, expected, rtol=0, atol=1e-12)
    assert found.metrics["rloo_is/clipped_high"] == pytest.approx(1 / 3)
    assert plan.metrics["rloo_is/rows_without_advantage"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("rule", ["sequence_product", "token_truncate"])
def test_the_mean_weight_is_one_of_all_completions_that_train(rule):
    plan = RLOOWithImportance(correction=rule).plan(ROWS)
    parts = [torch.tensor([0]), torch.tensor([1, 2])]
    same = [plan.loss(MicroBatch(rows, BATCH_MASK[rows], LOGPROBS[rows], LOGPROBS[rows])) for rows in parts]
    assert sum(one.metrics["rloo_is/weight_mean"] for one in same) == pytest.approx(1.0), (
        "row 2 has the advantage 0, and trains"
    )
    left_out = dataclasses.replace(ROWS, valid_B=tensor([True, True, False]))
    found = RLOOWithImportance(correction=rule).plan(left_out)
    found = found.loss(
        MicroBatch(torch.arange(3), BATCH_MASK, LOGPROBS, LOGPROBS - tensor([[0.0], [0.0], [9.0]]))
    )
    assert found.metrics["rloo_is/weight_mean"] == pytest.approx(1.0)
    assert found.metrics["rloo_is/clipped_high"] == 0.0


def test_equal_policies_give_the_loss_without_weights_to_the_last_bit():
    losses = []
    for objective in (RLOOWithImportance(), RLOOWithImportance(correction="none")):
        part = MicroBatch(torch.arange(3), BATCH_MASK, LOGPROBS, LOGPROBS)
        losses.append(objective.plan(ROWS).loss(part).loss.item())
    assert losses[0] == losses[1]


def test_the_clip_holds_a_second_pass_over_a_batch_back():
    """The policy has moved from the proximal one by a factor of e^.3 on row 0, whose advantage is positive."""
    moved = LOGPROBS + tensor([[0.3, 0.0], [0.0, 0.0], [0.0, 0.0]], dtype=F64)
    logprobs = moved.requires_grad_()
    part = MicroBatch(torch.arange(3), BATCH_MASK, logprobs, BEHAVIOR, proximal_logprobs_bT=LOGPROBS)
    RLOOWithImportance().plan(ROWS).loss(part).loss.backward()
    assert logprobs.grad[0].tolist() == [0.0, 0.0]
    assert (logprobs.grad[1, 0] != 0).item()


def test_huge_ratios_stay_finite():
    logprobs = LOGPROBS.clone().requires_grad_()
    for shift in (1e4, -1e4):
        part = MicroBatch(torch.arange(3), BATCH_MASK, logprobs, BEHAVIOR + shift)
        for rule in ("sequence_product", "token_truncate", "prefix_product"):
            loss = RLOOWithImportance(correction=rule).plan(ROWS).loss(part).loss
            assert loss.isfinite()
