"""Which completions of a prompt are compared, and what a comparison says."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from swift_rlx.algorithms.offline import (
    choose_pairs,
    hard_preferences,
    soft_preferences,
    votes,
    win_matrix,
)

F64 = torch.float64
SOURCES = tensor([[0.9, 7, 0], [0.8, 9, 0], [0.4, 6, -1], [0.7, 3, 0]], dtype=F64)


def connected(pairs, size):
    seen = {0}
    for _ in range(size):
        seen |= {j for pair in pairs for j in pair if seen & set(pair)}
    return len(seen) == size


@pytest.mark.parametrize(("size", "count"), [(1, 0), (2, 1), (4, 6), (6, 15), (7, 21), (8, 28)])
def test_up_to_eight_completions_all_pairs_are_compared(size, count):
    assert len(choose_pairs(torch.randn(size))) == count


def test_of_more_those_apart_by_more_than_a_standard_deviation():
    pairs = choose_pairs(torch.arange(10.0))
    assert len(pairs) == 28
    assert all(j - i >= 3 for i, j in pairs)  # the deviation is 2.87


def test_too_few_wide_gaps_are_filled_up_with_the_next_largest():
    scores = tensor([0.0] * 9 + [10.0])
    pairs = choose_pairs(scores)
    assert len(pairs) == 20
    assert pairs[:9] == [(i, 9) for i in range(9)]
    assert pairs[9:] == [(0, j) for j in range(1, 9)] + [(1, 2), (1, 3), (1, 4)]
    assert hard_preferences(scores, pairs).preferences_C.tolist() == [0.0] * 9 + [0.5] * 11


def test_what_is_still_apart_is_connected_by_neighbors():
    """Equal scores have no wide gap, and the first twenty pairs are all with completion 0."""
    pairs = choose_pairs(torch.zeros(30))
    assert pairs == [(0, j) for j in range(1, 21)] + [(j, j + 1) for j in range(20, 29)]
    assert connected(pairs, 30)


def test_a_completion_without_a_score_is_compared_with_nobody():
    assert choose_pairs(tensor([1.0, math.nan, 3.0])) == [(0, 2)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=0, max_size=24))
def test_comparisons_connect_all_completions_and_are_enough(scores):
    pairs = choose_pairs(tensor(scores, dtype=F64))
    everything = len(scores) * (len(scores) - 1) // 2
    assert len(set(pairs)) == len(pairs) >= min(20, everything)
    assert all(0 <= i < j < len(scores) for i, j in pairs)
    assert len(scores) < 2 or connected(pairs, len(scores))


def test_votes_are_shares_of_the_sources():
    pairs = choose_pairs(SOURCES[:, 0])
    preferences = votes(SOURCES, pairs).preferences_C
    expected = tensor([0.5, 1, 5 / 6, 1, 5 / 6, 1 / 3], dtype=F64)
    torch.testing.assert_close(preferences, expected, rtol=0, atol=1e-15)


def test_a_source_counts_by_its_weight():
    pairs = [(0, 1)]
    assert votes(SOURCES, pairs, tensor([1.0, 3.0, 0.0])).preferences_C.tolist() == [0.25]


def test_a_source_without_a_score_does_not_vote():
    scores = tensor([[1.0, math.nan, 0.0], [0.0, 5.0, 0.0], [math.nan, 4.0, math.nan]])
    found = votes(scores, [(0, 1), (0, 2), (1, 2)])
    assert found.pairs_C2.tolist() == [[0, 1], [1, 2]]  # no source has both of 0 and 2
    assert found.preferences_C.tolist() == [0.75, 1.0]


def test_soft_preferences_are_the_sigmoid_of_the_difference():
    found = soft_preferences(tensor([1.0, 0.0], dtype=F64), [(0, 1)], temperature=2.0)
    assert found.preferences_C.item() == pytest.approx(1 / (1 + math.exp(-0.5)), abs=1e-15)


def test_a_win_of_one_is_a_loss_of_the_other():
    wins = win_matrix(votes(SOURCES, [(0, 1), (0, 2), (2, 3), (0, 2)]), 4)
    expected = torch.zeros(4, 4, dtype=F64)
    expected[0, 1] = expected[1, 0] = 0.5
    expected[0, 2] = 2
    expected[2, 3], expected[3, 2] = 1 / 3, 2 / 3
    torch.testing.assert_close(wins, expected)


def test_wrong_inputs_are_refused():
    with pytest.raises(ValueError, match=r"scores of shape \[S\], got \(2, 2\)"):
        choose_pairs(torch.ones(2, 2))
    with pytest.raises(ValueError, match="floating-point"):
        choose_pairs(tensor([1, 2]))
    with pytest.raises(ValueError, match=r"votes takes scores \[S, F\] and weights \[F\]"):
        votes(SOURCES, [(0, 1)], torch.ones(2))
    with pytest.raises(ValueError, match="weights of at least 0"):
        votes(SOURCES, [(0, 1)], tensor([1.0, -1.0, 1.0]))
    with pytest.raises(ValueError, match="temperature above 0, got 0"):
        soft_preferences(torch.ones(2), [(0, 1)], temperature=0)
