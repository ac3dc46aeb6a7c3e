"""Bradley-Terry scores: numbers worked elsewhere, another optimizer, and what has no finite answer."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import tensor

from swift_rlx.algorithms.offline import (
    bradley_terry,
    choose_pairs,
    hard_preferences,
    pairwise,
    pairwise_advantages,
    soft_preferences,
    theta_advantages,
    votes,
    win_matrix,
)

F64 = torch.float64
SOURCES = tensor([[0.9, 7, 0], [0.8, 9, 0], [0.4, 6, -1], [0.7, 3, 0]], dtype=F64)


def fit(wins, ridge=0.1, **options):
    wins = torch.as_tensor(wins, dtype=F64)
    return bradley_terry(wins[None], torch.ones(1, len(wins), dtype=torch.bool), ridge, **options)


def theta(wins, ridge=0.1):
    return fit(wins, ridge).theta_PS[0]


def of_scores(scores, ridge=0.1, preferences=hard_preferences):
    scores = tensor(scores, dtype=F64)
    return theta(win_matrix(preferences(scores, choose_pairs(scores)), len(scores)), ridge)


def test_two_completions_at_three_to_one():
    found = theta([[0, 3], [1, 0]], ridge=0.0)
    assert (found[0] - found[1]).item() == pytest.approx(math.log(3), abs=1e-12)


@pytest.mark.parametrize(("ridge", "top"), [(0.0, 0.7563076126), (0.01, 0.7490349688), (0.1, 0.6909134195)])
def test_three_completions_of_which_the_better_one_wins_three_to_one(ridge, top):
    found = theta([[0, 3, 3], [1, 0, 3], [1, 1, 0]], ridge)
    torch.testing.assert_close(found, tensor([top, 0.0, -top], dtype=F64), rtol=0, atol=1e-10)


def test_votes_of_three_sources():
    found = theta(win_matrix(votes(SOURCES, choose_pairs(SOURCES[:, 0])), 4))
    expected = tensor([0.8273255029, 0.8273255029, -1.1778471317, -0.4768038742], dtype=F64)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    softmax = tensor([0.4156196899, 0.4156196899, 0.0559578093, 0.1128028109], dtype=F64)
    torch.testing.assert_close(found.softmax(0), softmax, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("ridge", "largest"), [(1e-6, 15.4), (1e-3, 6.41), (0.01, 3.79), (0.1, 1.7536), (0.5, 0.796)]
)
def test_a_total_order_is_finite_by_the_ridge_alone(ridge, largest):
    found = of_scores([1.2, 0.3, -0.5, -1.0], ridge)
    assert found[0].item() == pytest.approx(largest, abs=0.05 if largest > 10 else 0.006)
    if ridge == 0.1:
        expected = tensor([1.7536, 0.5497, -0.5497, -1.7536], dtype=F64)
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-5)


def test_of_one_score_only_the_ranks_count():
    torch.testing.assert_close(of_scores([10.0, 0.01, 0.0, -0.01]), of_scores([1.2, 0.3, -0.5, -1.0]))


def test_a_tie_is_half_a_win_for_both():
    torch.testing.assert_close(
        of_scores([1.0, 1.0, 0.0]), tensor([0.64, 0.64, -1.28], dtype=F64), rtol=0, atol=0.005
    )


def test_soft_preferences_give_back_the_scores():
    scores = [1.3, -0.2, 0.7, 0.1, -1.9]
    found = of_scores(scores, 0.0, lambda s, pairs: soft_preferences(s, pairs, temperature=0.5))
    expected = tensor(scores, dtype=F64) * 2
    torch.testing.assert_close(found, expected - expected.mean(), rtol=0, atol=1e-8)


def wins_of(seed, size):
    draw = torch.Generator().manual_seed(seed)
    wins = torch.rand(size, size, generator=draw, dtype=F64) * (torch.rand(size, size, generator=draw) < 0.6)
    return wins.fill_diagonal_(0.0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 7), st.floats(0.01, 2.0))
def test_equals_another_optimizer(seed, size, ridge):
    wins = wins_of(seed, size)
    plain = wins.numpy()

    def objective(x):
        difference = x[:, None] - x[None, :]
        return (plain * np.logaddexp(0, -difference)).sum() + ridge * (x**2).sum()

    best = minimize(objective, np.zeros(size), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(theta(wins, ridge).numpy(), best.x, atol=2e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 7), st.randoms())
def test_a_permutation_of_completions_permutes_the_scores(seed, size, random):
    wins, order = wins_of(seed, size), list(range(size))
    random.shuffle(order)
    torch.testing.assert_close(theta(wins[order][:, order]), theta(wins)[order], rtol=0, atol=1e-9)


def test_reversed_comparisons_reverse_the_signs():
    wins = wins_of(5, 6)
    torch.testing.assert_close(theta(wins.T.contiguous()), -theta(wins), rtol=0, atol=1e-9)


def test_twice_at_half_the_weight_is_once():
    wins = wins_of(7, 4)
    torch.testing.assert_close(theta(0.5 * wins + 0.5 * wins), theta(wins), rtol=0, atol=0)


def test_prompts_do_not_influence_each_other_and_garbage_in_the_padding_is_not_read():
    small, large = wins_of(1, 3), wins_of(2, 5)
    both = torch.full((2, 5, 5), math.nan, dtype=F64)
    both[0, :3, :3], both[1] = small, large
    valid = torch.arange(5) < tensor([[3], [5]])
    found = bradley_terry(both, valid, 0.1)
    torch.testing.assert_close(found.theta_PS[0, :3], theta(small), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.theta_PS[1], theta(large), rtol=0, atol=1e-9)
    assert found.theta_PS[0, 3:].tolist() == [0.0, 0.0]


def test_each_connected_set_is_centered_and_sets_are_counted():
    wins = torch.zeros(6, 6, dtype=F64)
    wins[0, 1] = wins[1, 2] = wins[3, 4] = 1.0  # 5 is compared with nobody
    found = fit(wins)
    assert found.components_P.tolist() == [3]
    assert found.theta_PS[0, :3].sum().item() == pytest.approx(0.0, abs=1e-9)
    assert found.theta_PS[0, 3:5].sum().item() == pytest.approx(0.0, abs=1e-9)
    assert found.theta_PS[0, 5].item() == pytest.approx(0.0, abs=1e-12)
    assert fit(wins_of(3, 5) + wins_of(4, 5)).components_P.tolist() == [1]


def test_without_a_ridge_a_completion_that_always_wins_is_refused():
    with pytest.raises(ValueError, match=r"no finite scores for 1 prompts, first number 0: .* ridge above 0"):
        fit([[0, 3, 3], [0, 0, 3], [0, 1, 0]], ridge=0.0)
    assert fit([[0, 3, 0], [0, 0, 3], [1, 0, 0]], ridge=0.0).theta_PS.isfinite().all()  # a cycle


def test_a_fit_that_does_not_converge_says_so():
    with pytest.raises(ValueError, match="did not converge within 2 steps for 1 of 1 prompts"):
        fit([[0, 1], [0, 0]], ridge=1e-6, max_steps=2)


def test_strong_preferences_and_a_weak_ridge_converge():
    """Where plain Newton steps might overshoot."""
    wins = torch.triu(torch.full((12, 12), 50.0, dtype=F64), 1)
    found = fit(wins, ridge=1e-6)
    assert (found.theta_PS[0].diff() < 0).all()
    assert found.steps < 60


@pytest.mark.parametrize(
    ("wins", "valid", "ridge", "message"),
    [
        (
            torch.zeros(1, 2, 3),
            torch.ones(1, 2, dtype=torch.bool),
            0.1,
            r"wins \[P, S, S\] and valid \[P, S\]",
        ),
        (torch.zeros(1, 2, 2), torch.ones(1, 2), 0.1, "a bool tensor as valid_PS"),
        (torch.zeros(1, 2, 2), torch.ones(1, 2, dtype=torch.bool), -1.0, "ridge of at least 0, got -1.0"),
        (-torch.ones(1, 2, 2), torch.ones(1, 2, dtype=torch.bool), 0.1, "finite wins of at least 0"),
    ],
)
def test_wrong_inputs_are_refused(wins, valid, ridge, message):
    with pytest.raises(ValueError, match=message):
        bradley_terry(wins, valid, ridge)


def test_advantages_are_theta_minus_the_mean_of_the_valid_ones():
    valid = tensor([[True, True, False]])
    found = theta_advantages(tensor([[3.0, 1.0, 9.0]], dtype=F64), valid)
    assert found.tolist() == [[1.0, -1.0, 0.0]]


# --- the whole way from scores to advantages -------------------------------------------------------------------------

IDS = tensor([7, 3, 7, 7, 3, 7, 9])
SCORES = torch.full((7, 3), 5.0, dtype=F64)
SCORES[[0, 2, 3, 5]] = SOURCES
SCORES[1], SCORES[4] = tensor([1.0, 0.0, 2.0]), tensor([0.0, 1.0, 1.0])


def test_a_batch_of_prompts_in_any_order():
    valid = torch.ones(7, dtype=torch.bool)
    found = pairwise_advantages(SCORES, IDS, valid)
    votes_of_three = tensor([0.8273255029, 0.8273255029, -1.1778471317, -0.4768038742], dtype=F64)
    torch.testing.assert_close(found.advantages_B[[0, 2, 3, 5]], votes_of_three, rtol=0, atol=1e-9)
    assert found.advantages_B[1] == -found.advantages_B[4] > 0  # two of three sources prefer it
    assert found.advantages_B[6] == 0.0
    assert (found.comparisons, found.disconnected) == (7, 0)


def test_invalid_and_unscored_rows_are_compared_with_nobody():
    scores = SCORES.clone()
    scores[4] = math.nan
    valid = tensor([True, True, True, True, True, False, True])
    found = pairwise_advantages(scores, IDS, valid)
    assert found.advantages_B[[1, 4, 5, 6]].tolist() == [0.0] * 4
    assert found.comparisons == 3
    assert found.advantages_B[[0, 2, 3]].sum().item() == pytest.approx(0.0, abs=1e-12)


def test_a_row_that_no_source_shares_with_the_others_is_reported():
    scores = tensor([[1.0, math.nan], [2.0, math.nan], [math.nan, 3.0]], dtype=F64)
    found = pairwise_advantages(scores, torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.bool))
    assert found.disconnected == 1
    assert found.advantages_B[2].item() == pytest.approx(0.0, abs=1e-12)


def test_one_source_gives_its_order():
    scores = tensor([[10.0], [0.01], [0.0], [-0.01]], dtype=F64)
    ids, valid = torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.bool)
    torch.testing.assert_close(
        pairwise_advantages(scores, ids, valid).advantages_B, of_scores([10.0, 0.01, 0.0, -0.01])
    )


def test_how_scores_become_preferences_can_be_chosen():
    scores = tensor([[1.0], [0.0], [-1.0]], dtype=F64)
    ids, valid = torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.bool)

    def soft(scores_SF, pairs):
        return soft_preferences(scores_SF.mean(1), pairs)

    found = pairwise_advantages(scores, ids, valid, preferences=soft, ridge=0.0)
    torch.testing.assert_close(found.advantages_B, scores[:, 0], rtol=0, atol=1e-9)


def test_an_empty_batch_has_no_advantages():
    nothing = torch.zeros(0, dtype=torch.long)
    found = pairwise.pairwise_advantages(torch.zeros(0, 2), nothing, nothing.bool())
    assert found.advantages_B.shape == (0,)


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"scores \[B, F\] with one group id and one valid flag per row"):
        pairwise_advantages(torch.zeros(3, 1), torch.zeros(2), torch.ones(3, dtype=torch.bool))
