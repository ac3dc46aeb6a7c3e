"""Conservative Q-learning on logits: the penalty, its schedule, the targets, and the values that they lead to."""

import pytest
import torch
from torch import tensor

from swift_rlx.algorithms.offline import (
    CQL,
    ExponentialAlpha,
    LinearAlpha,
    MicroBatch,
    StoredRows,
    conservative_penalty,
    soft_targets,
)

F64 = torch.float64
Q = tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], dtype=F64)
ACTIONS = tensor([2, 1])


def test_the_penalty_is_logsumexp_minus_the_value_of_the_action():
    got = conservative_penalty(Q, ACTIONS)
    assert got.mean().item() == pytest.approx(0.7531091266, abs=1e-10)
    torch.testing.assert_close(got, Q.logsumexp(1) - Q.gather(1, ACTIONS[:, None])[:, 0])


@pytest.mark.parametrize("shift", [0.0, 10.0, 100.0, -1e4])
def test_a_constant_added_to_all_values_changes_nothing(shift):
    """With alpha before the logsumexp alone, (alpha - 1) * shift would be added, without bound."""
    got = 0.1 * conservative_penalty(Q[:1] + shift, ACTIONS[:1])
    assert got.item() == pytest.approx(0.0407605964, abs=1e-9)
    printed = 0.1 * (Q[:1] + shift).logsumexp(1) - (Q[:1] + shift)[0, 2]
    assert printed.item() == pytest.approx(-0.9 * shift + (0.1 * 3.4076059644 - 3), abs=1e-6)


def test_the_penalty_scales_with_the_values():
    torch.testing.assert_close(
        conservative_penalty(Q / 2, ACTIONS, 2.0), 2 * conservative_penalty(Q / 2, ACTIONS)
    )


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (LinearAlpha(), [1.0, 0.775, 0.55, 0.1, 0.1]),
        (ExponentialAlpha(), [1.0, 0.5623413252, 0.3162277660, 0.1, 0.1]),
        (LinearAlpha(until=0.5), [1.0, 0.55, 0.1, 0.1, 0.1]),
    ],
)
def test_alpha_falls_from_one_to_a_tenth_and_stays(schedule, expected):
    assert [schedule(progress) for progress in (0, 0.25, 0.5, 1, 1.5)] == pytest.approx(expected, abs=1e-10)


# --- targets ---------------------------------------------------------------------------------------------------------


def test_a_target_is_the_value_of_the_next_token_and_at_the_end_the_reward():
    logits = torch.randn(2, 3, 4, dtype=F64)
    mask = tensor([[True, True, True], [True, False, False]])
    got = soft_targets(logits, tensor([5.0, -1.0], dtype=F64), mask, gamma=0.9)
    values = logits.logsumexp(-1)
    expected = [[0.9 * values[0, 1].item(), 0.9 * values[0, 2].item(), 5.0], [-1.0, 0.0, 0.0]]
    torch.testing.assert_close(got, tensor(expected, dtype=F64))


def test_tool_output_is_passed_over_without_a_discount():
    logits = torch.randn(1, 4, 4, dtype=F64)
    logits[0, 1] = torch.nan
    mask = tensor([[True, False, True, False]])
    got = soft_targets(logits, tensor([2.0], dtype=F64), mask, gamma=0.5)
    expected = tensor([[0.5 * logits[0, 2].logsumexp(-1).item(), 0.0, 2.0, 0.0]], dtype=F64)
    torch.testing.assert_close(got, expected)


def test_targets_carry_no_gradient():
    logits = torch.randn(1, 2, 3, requires_grad=True)
    assert not soft_targets(logits, torch.ones(1), torch.ones(1, 2, dtype=torch.bool)).requires_grad


# --- training --------------------------------------------------------------------------------------------------------


def loss_of(objective, logits, target, token_ids, rewards, progress=0.5):
    size, width = token_ids.shape
    rows = StoredRows(
        torch.arange(size),
        torch.full((size,), width),
        torch.ones(size, dtype=torch.bool),
        rewards_B=rewards,
        progress=progress,
    )
    part = MicroBatch(
        torch.arange(size),
        torch.ones(size, width, dtype=torch.bool),
        logits.log_softmax(-1).gather(-1, token_ids[..., None])[..., 0],
        token_ids_bT=token_ids,
        logits_bTV=logits,
        target_logits_bTV=target,
    )
    return objective.plan(rows).loss(part)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_with_all_data_and_no_penalty_the_policy_is_the_softmax_of_the_reward(toy_policy, scale):
    """Two tokens of three: Q of the last is the reward, and of the first the soft maximum over what follows."""
    token_ids = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    objective = CQL(alpha=lambda progress: 0.0, q_scale=scale)
    first, second = torch.zeros(3, dtype=F64), torch.zeros(3, 3, dtype=F64)

    def logits_of(first, second):
        return torch.stack([first.expand(9, 3), second[token_ids[:, 0]]], 1)

    for _ in range(130):
        first, second = first.requires_grad_(), second.requires_grad_()
        logits = logits_of(first, second)
        loss = loss_of(objective, logits, logits.detach(), token_ids, toy_policy.rewards).loss
        steps = torch.autograd.grad(loss, [first, second])
        # This step puts the first token on its target at once and leaves 2/3 of the error of the second.
        first, second = (
            (old - 6 / scale**2 * step).detach() for old, step in zip((first, second), steps, strict=True)
        )
    rewards = toy_policy.rewards.view(3, 3)
    torch.testing.assert_close(scale * second, rewards, rtol=0, atol=1e-9)
    torch.testing.assert_close(first, (rewards / scale).logsumexp(1), rtol=0, atol=1e-9)
    joint = first.log_softmax(-1)[:, None] + second.log_softmax(-1)
    torch.testing.assert_close(
        joint.exp().flatten(), (toy_policy.rewards / scale).softmax(0), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.1, [0.95889, 0.04479, -1.92295]), (1.0, [0.75837, 0.25229, -3.67541])]
)
def test_an_action_that_the_data_lacks_is_pushed_down(alpha, expected):
    """Three arms, data on the first two with rewards 1 and 0; .001 |Q|^2 keeps the third finite."""
    values = torch.zeros(3, dtype=F64, requires_grad=True)
    token_ids, rewards = tensor([[0], [1]]), tensor([1.0, 0.0], dtype=F64)
    objective = CQL(alpha=lambda progress: alpha)
    solver = torch.optim.LBFGS([values], max_iter=300, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure():
        solver.zero_grad()
        logits = values.expand(2, 1, 3)
        loss = loss_of(objective, logits, logits.detach(), token_ids, rewards).loss
        total = loss + 0.001 * values.square().sum()
        total.backward()
        return total

    solver.step(closure)
    torch.testing.assert_close(values.detach(), tensor(expected, dtype=F64), rtol=0, atol=5e-5)


def test_before_the_bellman_error_sets_in_it_is_imitation():
    logits, token_ids = torch.randn(2, 3, 4, dtype=F64), torch.randint(4, (2, 3))
    rewards = tensor([1.0, -1.0], dtype=F64)
    early = loss_of(CQL(), logits, logits, token_ids, rewards, progress=0.05)
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), token_ids.flatten())
    assert early.loss.item() == pytest.approx(0.955 * nll.item(), abs=1e-12)
    late = loss_of(CQL(), logits, logits, token_ids, rewards, progress=0.1)
    assert late.loss.item() == pytest.approx(0.91 * nll.item() + late.metrics["cql/bellman_error"], abs=1e-12)
    assert late.metrics["cql/penalty"] == pytest.approx(nll.item())


def test_a_copy_that_moves_does_not_change_the_gradient_path():
    logits = torch.randn(1, 2, 3, dtype=F64, requires_grad=True)
    target = torch.randn(1, 2, 3, dtype=F64, requires_grad=True)
    found = loss_of(CQL(), logits, target, tensor([[0, 1]]), torch.ones(1, dtype=F64))
    found.loss.backward()
    assert target.grad is None
    assert (logits.grad != 0).all()
