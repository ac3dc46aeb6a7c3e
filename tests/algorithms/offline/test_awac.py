"""AWAC weights: their temperature, their floor, and what training with them approaches."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from swift_rlx.algorithms.offline import (
    AWAC,
    AdaptiveTemperature,
    MicroBatch,
    StoredRows,
    awac_weights,
    floored,
    normalized,
    reward_alone,
    temperature_for,
)

F64 = torch.float64
A = normalized(tensor([-1.0, 0.0, 1.0, 2.0], dtype=F64))
advantages = st.lists(st.floats(-50, 50), min_size=2, max_size=12).map(lambda x: tensor(x, dtype=F64))


def test_advantages_are_normalized_over_the_batch():
    expected = tensor([-1.3416407865, -0.4472135955, 0.4472135955, 1.3416407865], dtype=F64)
    torch.testing.assert_close(A, expected, rtol=0, atol=1e-10)
    assert normalized(tensor([3.0, 3.0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("mean", "temperature"), [(0.5, 1.4677710574), (0.3, 0.5002813749), (0.7, 3.3468297042)]
)
def test_the_temperature_gives_the_mean_weight(mean, temperature):
    found = temperature_for(A, mean)
    assert found == pytest.approx(temperature, abs=1e-9)
    assert awac_weights(A, found).mean().item() == pytest.approx(mean, abs=1e-10)


def test_four_weights_by_hand():
    expected = tensor([0.1607132448, 0.2955977425, 0.5436890127, 1.0], dtype=F64)
    weights = awac_weights(A, temperature_for(A))
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)
    shares = tensor([0.0803566, 0.1477989, 0.2718445, 0.5], dtype=F64)
    torch.testing.assert_close(weights / weights.sum(), shares, rtol=0, atol=1e-7)
    one = normalized(tensor([0.0, 0.0, 0.0, 1.0]))
    assert temperature_for(one) == pytest.approx(2.1021074501, abs=1e-9)
    torch.testing.assert_close(
        awac_weights(one, temperature_for(one)), tensor([1 / 3, 1 / 3, 1 / 3, 1], dtype=F64)
    )


def test_huge_advantages_give_finite_weights():
    assert awac_weights(tensor([800.0, 0.0]), 1.0).tolist() == [1.0, 0.0]


@settings(max_examples=50, deadline=None)
@given(advantages, st.floats(-100, 100), st.floats(0.1, 10))
def test_shift_and_scale_of_the_advantages_change_nothing(values, shift, scale):
    plain = normalized(values)
    if values.std() < 1e-3:
        return
    torch.testing.assert_close(normalized(values * scale + shift), plain, rtol=0, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(advantages, st.floats(0.05, 0.95))
def test_a_mean_weight_is_reached_or_there_is_none(values, mean):
    values = normalized(values)
    found = temperature_for(values, mean)
    if found is None:
        assert awac_weights(values, 1e-3).mean() >= mean
    else:
        assert awac_weights(values, found).mean().item() == pytest.approx(mean, abs=1e-10)


@settings(max_examples=50, deadline=None)
@given(advantages, st.floats(0.05, 20), st.just(0.0) | st.floats(0.01, 0.5), st.floats(0, 0.5))
def test_more_advantage_is_never_less_weight(values, temperature, floor, share):
    weights = awac_weights(normalized(values), temperature)
    kept = floored(weights, floor, share)
    order = values.argsort()
    assert (kept.weights_N[order].diff() >= -1e-12).all()
    assert (kept.weights_N >= weights - 1e-12).all()
    assert kept.weights_N.max() <= 1 + 1e-12


@pytest.mark.parametrize(("temperature", "low", "high"), [(1000.0, 0.2497, 0.2503), (1e-3, 0.0, 1.0)])
def test_the_limits_are_imitation_of_all_and_of_the_best(temperature, low, high):
    weights = awac_weights(A, temperature)
    shares = weights / weights.sum()
    assert shares.min().item() == pytest.approx(low, abs=1e-4)
    assert shares.max().item() == pytest.approx(high, abs=1e-4)


@pytest.mark.parametrize(("ones", "lifted", "share"), [(19, 1.0, 0.05), (49, 1.0, 0.02), (9, 0.4737, 0.05)])
def test_completions_under_the_floor_keep_a_share_together(ones, lifted, share):
    """Of 19 and of 9 ones five percent; beside 49 they would need more than the others have each."""
    kept = floored(tensor([1.0] * ones + [0.02], dtype=F64))
    assert kept.low == 1
    assert kept.weights_N[-1].item() == pytest.approx(lifted, abs=1e-4)
    assert kept.low_share == pytest.approx(share, abs=1e-9)
    assert (kept.weights_N[:-1] == 1).all()


def test_a_share_that_the_floor_gives_is_left_alone():
    kept = floored(tensor([1.0, 0.5, 0.02], dtype=F64))
    assert kept.weights_N.tolist() == [1.0, 0.5, 0.1]
    assert kept.low_share == pytest.approx(0.1 / 1.6)
    untouched = floored(tensor([1.0, 0.02], dtype=F64), floor=0.0)
    assert (untouched.weights_N.tolist(), untouched.low) == ([1.0, 0.02], 0)


def test_the_temperature_stays_within_its_band():
    temperature = AdaptiveTemperature(value=1.0)
    assert temperature.update(A) == 1.0  # the mean weight is .41
    temperature.value = 0.3
    assert temperature.update(A) == pytest.approx(1.4677710574)
    assert temperature.is_feasible


@pytest.mark.parametrize("values", [[2.0, 2.0, 2.0], [1.0, 1.0, 1.0, 0.0]])
def test_ties_for_the_best_keep_the_temperature_and_are_reported(values):
    temperature = AdaptiveTemperature(value=0.01)
    assert temperature.update(normalized(tensor(values))) == 0.01
    assert not temperature.is_feasible
    assert temperature_for(normalized(tensor(values))) is None


def rows_of(rewards, ids):
    size = len(rewards)
    return StoredRows(
        group_ids_B=tensor(ids),
        tokens_B=torch.full((size,), 2),
        valid_B=torch.ones(size, dtype=torch.bool),
        rewards_B=tensor(rewards, dtype=F64),
    )


def test_the_objective_weighs_leave_one_out_advantages():
    plan = AWAC(floor=0.0).plan(rows_of([-1.0, 1.0, 5.0, 5.0], [0, 0, 1, 1]))
    weights = awac_weights(normalized(tensor([-2.0, 2.0, 0.0, 0.0], dtype=F64)), 1.0)
    torch.testing.assert_close(plan.weights_B, weights / weights.sum())
    assert plan.metrics["awac/mean_weight"] == pytest.approx(weights.mean().item())


def test_logs_with_one_completion_per_prompt_weigh_the_reward_itself():
    rows = rows_of([-1.0, 0.0, 1.0, 2.0], [0, 1, 2, 3])
    plan = AWAC(advantages=reward_alone).plan(rows)
    weights = awac_weights(A, 1.0)
    floor = weights.clamp(min=0.1)
    torch.testing.assert_close(plan.weights_B, floor / floor.sum())
    assert AWAC().plan(rows).weights_B.tolist() == [0.25] * 4  # no other completion to compare with


def test_the_floor_and_its_share_are_metrics():
    plan = AWAC(advantages=reward_alone).plan(rows_of([0.0] + [10.0] * 19, list(range(20))))
    assert plan.metrics["awac/floored"] == 0.05
    assert plan.metrics["awac/floored_share"] == pytest.approx(0.05)
    assert plan.metrics["awac/mean_weight_floored"] == pytest.approx(1.0)
    assert plan.metrics["awac/temperature_infeasible"] == 1.0


def test_one_completion_is_imitated():
    plan = AWAC().plan(rows_of([3.0], [0]))
    assert plan.weights_B.tolist() == [1.0]


def test_with_a_fixed_temperature_the_minimum_is_the_tilted_behavior(toy_policy):
    """The gradient is that of KL(q || policy) with q ~ behavior * exp(A / temperature), behavior = the data."""
    counts = torch.arange(1, 10)
    which = torch.arange(9).repeat_interleave(counts)
    rewards = toy_policy.rewards[which]
    objective = AWAC(temperature=AdaptiveTemperature(value=0.6, band=(0.0, 1.0)), floor=0.0)
    plan = objective.plan(rows_of(rewards.tolist(), [0] * len(which)))
    mask = torch.ones(len(which), 2, dtype=torch.bool)
    got = toy_policy.gradient(
        plan.loss(MicroBatch(torch.arange(len(which)), mask, toy_policy.logprobs()[which])).loss
    )
    spread = (rewards - rewards.mean()).square().mean().sqrt()
    q = counts * (toy_policy.rewards / spread / 0.6).exp()
    q = q / q.sum()
    kl = (q * (q.log() - toy_policy.logprobs().sum(1))).sum()
    torch.testing.assert_close(got, toy_policy.gradient(kl), rtol=0, atol=1e-12)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="temperature above 0, got -1"):
        awac_weights(A, -1)
    with pytest.raises(ValueError, match="mean weight between 0 and 1, got 1"):
        temperature_for(A, 1)
    with pytest.raises(ValueError, match="floor from 0 to 1 and a share under 1, got 2 and"):
        floored(A.exp(), 2)
    assert math.isfinite(temperature_for(A, 0.26))
