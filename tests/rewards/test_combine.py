"""Several reward sources into one reward per trajectory."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swift_rlx.errors import ConfigError, RewardError
from swift_rlx.rewards import combine_rewards

NAN = math.nan


def combine(rows, weights, dtype=torch.float64):
    return combine_rewards(torch.tensor(rows, dtype=dtype), torch.tensor(weights, dtype=dtype))


def test_a_missing_source_leaves_its_weight_to_the_others():
    # Rows (1, None) and (.5, 2), weights (1, .5): a plain sum without the missing one would give 1.0 and 1.5.
    combined = combine([[1.0, NAN], [0.5, 2.0]], [1.0, 0.5])
    assert combined.rewards_B.tolist() == [1.5, 1.5]
    assert combined.valid_B.tolist() == [True, True]


def test_a_row_that_nobody_scored_is_invalid_and_not_zero_by_accident():
    combined = combine([[1.0], [NAN], [0.0], [1.0]], [1.0])
    assert combined.rewards_B.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert combined.valid_B.tolist() == [True, False, True, True]


def test_a_source_of_weight_zero_scores_nothing():
    combined = combine([[1.0, 5.0], [NAN, 5.0]], [1.0, 0.0])
    assert combined.rewards_B.tolist() == [1.0, 0.0]
    assert combined.valid_B.tolist() == [True, False]
    assert combine([[1.0, 5.0]], [0.0, 0.0]).valid_B.tolist() == [False]


def test_negative_weights_keep_their_sign_and_count_by_size():
    # A penalty source of weight -0.5; where the other is missing it takes over 1.5 of weight.
    combined = combine([[1.0, 2.0], [NAN, 2.0], [1.0, NAN]], [1.0, -0.5])
    assert combined.rewards_B.tolist() == [0.0, -3.0, 1.5]


def test_no_sources_and_no_rows():
    assert combine_rewards(torch.zeros(2, 0), torch.zeros(0)).valid_B.tolist() == [False, False]
    assert combine_rewards(torch.zeros(0, 2), torch.ones(2)).rewards_B.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_is_kept(dtype):
    assert combine([[1.0, NAN]], [1.0, 0.5], dtype).rewards_B.dtype == dtype


def test_an_infinite_reward_is_refused_with_its_place():
    with pytest.raises(RewardError, match="source 1 gave -inf for row 2: it must be finite"):
        combine([[1.0, 1.0], [1.0, 1.0], [1.0, -math.inf]], [1.0, 1.0])


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(
        ConfigError, match=r"shape \(1, 2\) and weights of shape \(3,\): they are \[B, F\] and \[F\]"
    ):
        combine([[1.0, 2.0]], [1.0, 1.0, 1.0])
    with pytest.raises(ConfigError, match=r"a reward weight is not finite"):
        combine([[1.0]], [NAN])


def test_unscored_rows_stay_out_of_a_leave_one_out_baseline():
    # K = 4 with rewards 1, None, 0, 1. Counted as 0, the second row would drag its siblings' baseline down.
    from swift_rlx.algorithms.leave_one_out import loo_advantages

    rewards, valid = combine([[1.0], [NAN], [0.0], [1.0]], [1.0])
    advantages = loo_advantages(rewards, torch.zeros(4, dtype=torch.int64), valid)
    assert advantages.tolist() == [0.5, 0.0, -1.0, 0.5]


scores = st.one_of(st.none(), st.floats(-100, 100))


@given(
    st.lists(st.tuples(scores, scores, scores), min_size=1, max_size=5),
    st.tuples(*[st.floats(-3, 3).map(lambda w: round(w, 2))] * 3),
)
def test_it_equals_the_formula_row_by_row(rows, weights):
    combined = combine([[NAN if r is None else r for r in row] for row in rows], list(weights))
    for row, reward, valid in zip(rows, combined.rewards_B.tolist(), combined.valid_B.tolist(), strict=True):
        pairs = [(w, r) for w, r in zip(weights, row, strict=True) if r is not None and w]
        if not pairs:
            assert not valid
            assert reward == 0.0
            continue
        expected = sum(w * r for w, r in pairs) / sum(abs(w) for w, _ in pairs) * sum(map(abs, weights))
        assert valid
        assert reward == pytest.approx(expected, rel=1e-9, abs=1e-9)
