"""EMABaseline: used before it is updated, saved as one number."""

import json
import math

import pytest
import torch
from torch import tensor

from swift_rlx.algorithms import EMABaseline
from swift_rlx.errors import CheckpointError

F64 = torch.float64
NAN = math.nan


def rows(*rewards):
    return tensor(rewards, dtype=F64), torch.ones(len(rewards), dtype=torch.bool)


def step(baseline, rewards, valid):
    """One generation batch: advantages first, then the update."""
    advantages = baseline.advantages(rewards, valid)
    baseline.update(baseline.batch_mean(rewards, valid))
    return advantages


def test_three_batches():
    baseline = EMABaseline(0.95)
    values, advantages = [], []
    for batch in ((1.0, 0.0), (1.0, 1.0), (0.0, 0.5)):
        advantages.append(step(baseline, *rows(*batch)).tolist())
        values.append(baseline.value)
    assert values == pytest.approx([0.5, 0.525, 0.51125], abs=1e-12)
    expected = [[0.5, -0.5], [0.5, 0.5], [-0.525, -0.025]]
    for got, want in zip(advantages, expected, strict=True):
        assert got == pytest.approx(want, abs=1e-12)


def test_advantages_do_not_move_the_baseline():
    baseline = EMABaseline(0.95)
    assert baseline.value is None
    baseline.advantages(*rows(1.0, 0.0))
    assert baseline.value is None
    baseline.update(0.5)
    baseline.advantages(*rows(3.0, 3.0))
    assert baseline.value == 0.5


def test_current_batch_has_no_part_in_its_own_baseline():
    baseline = EMABaseline(0.9)
    baseline.update(2.0)
    assert baseline.baseline(*rows(100.0)) == 2.0
    assert baseline.advantages(*rows(100.0)).tolist() == [98.0]


def test_first_batch_uses_its_own_mean():
    baseline = EMABaseline(0.9)
    assert baseline.baseline(*rows(1.0, 3.0)) == 2.0


@pytest.mark.parametrize("garbage", [NAN, math.inf])
def test_invalid_and_non_finite_rows_are_left_out(garbage):
    baseline = EMABaseline(0.95)
    rewards, valid = tensor([1.0, garbage, 0.0, garbage]), tensor([True, False, True, True])
    assert step(baseline, rewards, valid).tolist() == [0.5, 0.0, -0.5, 0.0]
    assert baseline.value == 0.5


def test_batch_without_valid_rows_changes_nothing():
    baseline = EMABaseline(0.95)
    nobody = (tensor([NAN, 7.0]), tensor([True, False]))
    assert step(baseline, *nobody).tolist() == [0.0, 0.0]
    assert baseline.value is None
    baseline.update(0.5)
    step(baseline, *nobody)
    assert baseline.value == 0.5
    baseline.update(NAN)
    assert baseline.value == 0.5


def test_single_survivor_is_measured_against_the_running_mean():
    baseline = EMABaseline(0.95)
    baseline.update(0.2)
    got = baseline.advantages(tensor([0.7, NAN], dtype=F64), tensor([True, False]))
    assert got.tolist() == pytest.approx([0.5, 0.0])


def test_infinite_mean_is_refused():
    with pytest.raises(ValueError, match="takes the finite mean reward of a batch, got inf"):
        EMABaseline(0.95).update(math.inf)


@pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5, NAN])
def test_decay_outside_its_range_is_refused(decay):
    with pytest.raises(ValueError, match="takes a decay from 0 to below 1, got"):
        EMABaseline(decay)


def test_state_passes_through_json_and_goes_on_exactly():
    straight, saved = EMABaseline(0.95), EMABaseline(0.95)
    for mean in (0.1, 0.7, 1 / 3):
        straight.update(mean)
        saved.update(mean)
    resumed = EMABaseline(0.95)
    resumed.load_state_dict(json.loads(json.dumps(saved.state_dict())))
    assert resumed.value == straight.value
    straight.update(0.9)
    resumed.update(0.9)
    assert resumed.value == straight.value


def test_state_before_the_first_batch_round_trips():
    resumed = EMABaseline(0.95)
    resumed.update(3.0)
    resumed.load_state_dict(json.loads(json.dumps(EMABaseline(0.95).state_dict())))
    assert resumed.value is None


@pytest.mark.parametrize("state", [{}, {"value": "0.5"}, {"value": NAN}, {"value": math.inf}])
def test_broken_state_is_refused(state):
    with pytest.raises(CheckpointError, match="saved state of the EMA baseline"):
        EMABaseline(0.95).load_state_dict(state)


def bandit_gradient(use):
    """Exact expected gradient of E[R] on three arms with batches of N = 2, as a share of the true one.

    `use(baseline, rewards, valid)` returns the advantages of a batch; V starts at 0.3.
    """
    p, r = tensor([0.5, 0.3, 0.2], dtype=F64), tensor([1.0, 0.0, 0.4], dtype=F64)
    estimate = torch.zeros(3, dtype=F64)
    for i in range(3):
        for j in range(3):
            baseline = EMABaseline(0.95)
            baseline.update(0.3)
            advantages = use(baseline, *rows(r[i].item(), r[j].item()))
            scores = torch.eye(3, dtype=F64)[[i, j]] - p
            estimate += p[i] * p[j] * (advantages[:, None] * scores).mean(0)
    return estimate / (p * (r - (p * r).sum()))


def test_use_then_update_is_unbiased():
    torch.testing.assert_close(bandit_gradient(step), torch.ones(3, dtype=F64))


def test_update_then_use_would_shrink_the_gradient():
    def wrong_order(baseline, rewards, valid):
        baseline.update(baseline.batch_mean(rewards, valid))
        return baseline.advantages(rewards, valid)

    torch.testing.assert_close(bandit_gradient(wrong_order), torch.full((3,), 1 - 0.05 / 2, dtype=F64))


def test_first_batch_carries_the_factor_of_a_mean_that_includes_the_row():
    def first_batch(baseline, rewards, valid):
        return EMABaseline(0.95).advantages(rewards, valid)

    torch.testing.assert_close(bandit_gradient(first_batch), torch.full((3,), 1 - 1 / 2, dtype=F64))


def test_advantages_have_the_dtype_of_the_rewards_and_no_gradient():
    rewards = tensor([1.0, 0.0], requires_grad=True)
    got = EMABaseline(0.95).advantages(rewards, tensor([True, True]))
    assert got.dtype == torch.float32
    assert not got.requires_grad
