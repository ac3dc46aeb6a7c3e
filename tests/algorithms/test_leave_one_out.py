"""loo_advantages: worked cases, an independent loop, and the invariances of a leave-one-out baseline."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_rlx.algorithms import loo_advantages

R4 = [1.0, 0.0, 0.5, 0.25]


def loo(rewards, group_ids=None, valid=None, dtype=torch.float64):
    size = len(rewards)
    ids = torch.tensor(group_ids if group_ids is not None else [0] * size, dtype=torch.int64)
    mask = torch.tensor(valid if valid is not None else [True] * size)
    return loo_advantages(torch.tensor(rewards, dtype=dtype), ids, mask)


def loo_by_loop(rewards, group_ids, valid):
    """One row at a time, in Python floats: reward minus the mean of the others."""
    result = []
    for i, reward in enumerate(rewards):
        others = [
            rewards[j] for j in range(len(rewards)) if j != i and group_ids[j] == group_ids[i] and valid[j]
        ]
        result.append(reward - math.fsum(others) / len(others) if valid[i] and others else 0.0)
    return result


@st.composite
def scored_batches(draw):
    size = draw(st.integers(1, 14))
    rewards = draw(st.lists(st.floats(-100, 100), min_size=size, max_size=size))
    ids = draw(
        st.lists(st.sampled_from([-(2**63), -7, 0, 3, 2**62, 2**63 - 1]), min_size=size, max_size=size)
    )
    valid = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return rewards, ids, valid


def assert_close(got, want, atol=1e-10):
    torch.testing.assert_close(
        got, torch.as_tensor(want, dtype=got.dtype), rtol=1e-9, atol=atol, check_dtype=False
    )


def test_four_rewards_of_one_prompt():
    assert_close(loo(R4), [0.75, -7 / 12, 1 / 12, -0.25])


def test_one_right_answer_among_four_has_bounded_advantages():
    """The others' standard deviation is 0 for it: as a divisor it would make 1e6 of it (scenario D 48)."""
    assert_close(loo([1.0, 0.0, 0.0, 0.0]), [1.0, -1 / 3, -1 / 3, -1 / 3])


def test_kl_is_subtracted_before_the_baseline():
    shaped = torch.tensor(R4, dtype=torch.float64) - 0.05 * torch.tensor(
        [2.0, -0.5, 1.0, 0.0], dtype=torch.float64
    )
    assert_close(shaped, [0.9, 0.025, 0.45, 0.25])
    assert_close(loo(shaped.tolist()), [0.6583333333, -0.5083333333, 0.0583333333, -0.2083333333])


def test_shaping_with_kl_gives_each_row_its_own_kl_and_the_others_theirs():
    assert_close(loo([1.0 - 0.1 * 2.0, 0.0 - 0.1 * 0.0]), [0.8, -0.8])


def test_invalid_row_leaves_the_baseline_of_the_others():
    shaped = [0.9, 0.025, 0.45, 0.25]
    assert_close(loo(shaped, valid=[True, False, True, True]), [0.55, 0.0, -0.125, -0.425])


def test_unscored_row_is_not_a_reward_of_zero():
    assert_close(loo([1.0, math.nan, 0.0, 1.0], valid=[True, False, True, True]), [0.5, 0.0, -1.0, 0.5])


def test_lone_survivor_of_a_group_gets_zero():
    assert loo([0.9, 0.025, 0.45, 0.25], valid=[False, False, True, False]).tolist() == [0.0] * 4
    assert loo([0.7, 0.1], valid=[True, False]).tolist() == [0.0, 0.0]


def test_group_of_one_gets_zero():
    assert loo([3.0, 1.0, 2.0], group_ids=[5, 6, 7]).tolist() == [0.0] * 3


def test_two_groups_have_their_own_baselines():
    got = loo([*R4, 0.2, 0.2, 0.8, 0.0], group_ids=[0] * 4 + [1] * 4)
    assert_close(got, [0.75, -7 / 12, 1 / 12, -0.25, -0.1333333333, -0.1333333333, 0.6666666667, -0.4])


def test_batch_normalization_of_the_advantages_gives_the_numbers_of_trl():
    got = loo([*R4, 0.2, 0.2, 0.8, 0.0], group_ids=[0] * 4 + [1] * 4)
    normalized = (got - got.mean()) / (got.std() + 1e-4)
    want = [1.5624543846, -1.2152422991, 0.1736060427, -0.5208181282]
    want += [-0.2777696684, -0.2777696684, 1.3888483419, -0.8333090051]
    assert_close(normalized, want, atol=1e-9)


def test_one_outlier_stays_bounded_because_nothing_divides_by_a_spread():
    assert_close(loo([1.0, 0.0, 0.0, 0.0]), [1.0, -1 / 3, -1 / 3, -1 / 3])


@pytest.mark.parametrize("reward", [0.1, 1e7 + 0.1, -3.3])
@pytest.mark.parametrize("size", [2, 3, 7, 10])
def test_equal_rewards_give_exactly_zero(reward, size):
    assert loo([reward] * size).tolist() == [0.0] * size
    assert loo([reward] * size, dtype=torch.float32).tolist() == [0.0] * size


def test_reward_scale_of_one_prompt_does_not_touch_another():
    ids = [0, 0, 0, 1, 1, 1]
    small = loo([1.0, 0.0, 0.5, 0.2, 0.2, 0.8], ids)
    large = loo([1.0, 0.0, 0.5, 200.0, 200.0, 800.0], ids)
    assert_close(large[:3], small[:3])
    assert_close(large[3:], 1000 * small[3:])


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_garbage_in_an_invalid_row_harms_nobody(garbage):
    clean = loo([1.0, 0.0, 0.5, 9.0], valid=[True, True, True, False])
    assert loo([1.0, 0.0, 0.5, garbage], valid=[True, True, True, False]).equal(clean)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_reward_in_a_valid_row_is_refused(bad):
    with pytest.raises(ValueError, match=r"got the reward (nan|inf) in row 1, which is marked valid"):
        loo([1.0, bad, 0.5])


def test_result_has_the_dtype_of_the_rewards_and_no_gradient():
    rewards = torch.tensor(R4, requires_grad=True)
    got = loo_advantages(rewards, torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.bool))
    assert got.dtype == torch.float32
    assert not got.requires_grad


def test_float32_rewards_are_summed_in_float64():
    rewards = [1e8, 1e8 + 8, *([1e8] * 98)]
    got = loo(rewards, dtype=torch.float32)
    assert got[1].item() == pytest.approx(8.0, rel=1e-7)
    assert got[0].item() == pytest.approx(-8.0 / 99, rel=1e-7)


def test_empty_batch_gives_an_empty_result():
    got = loo_advantages(torch.zeros(0), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool))
    assert got.shape == (0,)


@given(scored_batches())
def test_equals_a_loop_over_rows(batch):
    assert_close(loo(*batch), loo_by_loop(*batch), atol=1e-9)


@given(scored_batches(), st.randoms(use_true_random=False))
def test_rows_may_come_in_any_order(batch, random):
    rewards, ids, valid = batch
    order = list(range(len(rewards)))
    random.shuffle(order)
    shuffled = loo([rewards[i] for i in order], [ids[i] for i in order], [valid[i] for i in order])
    assert_close(shuffled, loo(*batch)[order], atol=1e-9)


@given(scored_batches())
def test_group_ids_are_labels_only(batch):
    rewards, ids, valid = batch
    renamed = {old: new for new, old in enumerate(sorted(set(ids), reverse=True))}
    assert_close(loo(rewards, [renamed[i] for i in ids], valid), loo(*batch), atol=1e-9)


@given(scored_batches(), st.floats(-50, 50), st.floats(-8, 8))
@settings(max_examples=60)
def test_a_shift_changes_nothing_and_a_scale_scales(batch, shift, scale):
    rewards, ids, valid = batch
    moved = loo([scale * r + shift for r in rewards], ids, valid)
    assert_close(moved, scale * loo(*batch), atol=1e-8)


@given(scored_batches())
def test_advantages_of_a_group_sum_to_zero(batch):
    rewards, ids, valid = batch
    got = loo(rewards, ids, valid)
    for group in set(ids):
        rows = [i for i, label in enumerate(ids) if label == group]
        assert abs(got[rows].sum().item()) < 1e-9
