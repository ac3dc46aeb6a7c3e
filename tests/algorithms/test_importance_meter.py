"""OffPolicyMeter: hand-worked numbers, cells, merging, extreme ratios, and exact expectations."""

import math

import pytest
import torch
from drifted_policy import MASK as EVERY
from drifted_policy import DriftedPolicy
from torch import tensor

from swift_rlx.algorithms import CELLS, OffPolicyMeter, importance_weights

F64 = torch.float64
LOG_RATIOS = tensor([[0.1, -0.2, 0.05], [1.0, -1.2, 0.3], [2.0, 0.1, math.nan]], dtype=F64)
MASK = tensor([[True] * 3, [True] * 3, [True, True, False]])
BEHAVIOR = torch.full((3, 3), -1.5, dtype=F64)
PROXIMAL = BEHAVIOR + LOG_RATIOS
SIGNS = tensor([1.0, -1.0, 0.0], dtype=F64)[:, None].expand(3, 3)
STALENESS = tensor([[0, 0, 0], [3, 2, 1], [40, 0, 0]])


def measured(**options):
    meter = OffPolicyMeter()
    meter.add(PROXIMAL, BEHAVIOR, MASK, SIGNS, **options)
    return meter


def test_the_numbers_of_a_hand_worked_batch():
    found = measured().summary()
    expected = {
        "ess_seq": 0.5062105212,
        "ess_token": 0.4603487054,
        "kl_k1": -0.26875,
        "kl_k2": 0.41203125,
        "kl_k3": 0.7110918291,
        "second_moment": 0.8240625,
        "chi2_token": 7.5147924208,
        "chi2_seq": 21.9375237390,
        "max_log_ratio": 2.0,
    }
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected, abs=1e-9)
    assert (found.tokens, found.rows) == (8, 3)


def test_equal_policies_are_at_distance_zero():
    meter = OffPolicyMeter()
    meter.add(BEHAVIOR, BEHAVIOR, MASK, SIGNS)
    found = meter.summary()
    assert found.ess_token == pytest.approx(1.0, abs=1e-15)
    assert found.ess_seq == pytest.approx(1.0, abs=1e-15)
    assert found.kl_k3 == found.kl_k1 == found.max_log_ratio == 0.0
    assert abs(found.chi2_token) < 1e-14


@pytest.mark.parametrize(
    ("cell", "tokens", "rows"),
    [("0", 4, 1), ("1", 1, 0), ("2", 1, 0), ("3-4", 1, 1), ("over_8", 1, 1)],
)
def test_tokens_count_by_their_own_staleness_and_rows_by_their_worst(cell, tokens, rows):
    meter = measured(staleness_BT=STALENESS)
    found = meter.summary(cell)
    assert (found.tokens, found.rows) == (tokens, rows)
    assert meter.summary("5-8") is None


def test_advantages_above_and_below_zero_are_apart():
    meter = measured(weights=importance_weights("two_sided_mask", PROXIMAL, BEHAVIOR, MASK))
    positive, negative = meter.summary("positive"), meter.summary("negative")
    assert (positive.tokens, positive.rows, negative.tokens, negative.rows) == (3, 1, 3, 1)
    assert (positive.clipped_low, negative.clipped_low) == (0.0, pytest.approx(1 / 3))
    assert positive.max_log_ratio == pytest.approx(0.2)


def test_clipped_shares_are_of_tokens_or_of_rows():
    per_token = measured(weights=importance_weights("two_sided_mask", PROXIMAL, BEHAVIOR, MASK)).summary()
    assert (per_token.clipped_low, per_token.clipped_high) == (1 / 8, 1 / 8)
    per_row = measured(weights=importance_weights("sequence_product", PROXIMAL, BEHAVIOR, MASK)).summary()
    assert (per_row.clipped_low, per_row.clipped_high) == (0.0, pytest.approx(1 / 3))


def test_dropped_rows_are_a_share_of_the_rows():
    found = measured(kept_B=tensor([True, False, True]))
    assert found.summary().rows_dropped == pytest.approx(1 / 3)
    assert found.summary("negative").rows_dropped == 1.0


def test_a_row_counts_with_all_its_tokens_where_some_do_not_train():
    trains = MASK.clone()
    trains[0, 0] = False
    trains[1] = False
    found = OffPolicyMeter()
    found.add(PROXIMAL, BEHAVIOR, trains, SIGNS, sampled_BT=MASK & trains.any(1, keepdim=True))
    summary = found.summary()
    assert (summary.tokens, summary.rows) == (4, 2)
    first, third = math.exp(-0.05), math.exp(2.1)
    assert summary.ess_seq == pytest.approx((first + third) ** 2 / (2 * (first**2 + third**2)))


def test_any_split_and_order_gives_the_same():
    draw = torch.Generator().manual_seed(0)
    proximal, behavior = (torch.randn(12, 7, generator=draw, dtype=F64) for _ in range(2))
    mask, advantages = torch.rand(12, 7, generator=draw) < 0.7, torch.randn(12, 7, generator=draw)
    staleness = torch.randint(0, 12, (12, 7), generator=draw)
    whole = OffPolicyMeter()
    whole.add(proximal, behavior, mask, advantages, staleness_BT=staleness)
    ranks = [OffPolicyMeter(), OffPolicyMeter()]
    for index, rows in enumerate(torch.arange(12).split(2)):
        ranks[index % 2].add(
            proximal[rows], behavior[rows], mask[rows], advantages[rows], staleness_BT=staleness[rows]
        )
    for order in (ranks, ranks[::-1]):
        merged = OffPolicyMeter()
        for rank in order:
            merged.merge(torch.tensor(rank.state.tolist(), dtype=F64))
        torch.testing.assert_close(merged.state, whole.state, rtol=1e-13, atol=1e-13)
    parts = [whole.summary(cell) for cell in CELLS[1:7]]
    assert sum(part.tokens for part in parts) == mask.sum()
    assert sum(part.rows for part in parts) == mask.any(1).sum()


def test_ratios_of_any_size_give_finite_numbers():
    proximal = tensor([[1e4, -1e4], [1e4, 1e4], [0.0, 0.0]])
    meter = OffPolicyMeter()
    meter.add(proximal, torch.zeros(3, 2), torch.ones(3, 2, dtype=torch.bool), torch.ones(3, 2))
    found = meter.summary()
    values = [value for value in vars(found).values() if isinstance(value, float)]
    assert all(math.isfinite(value) for value in values)
    assert found.max_log_ratio == 1e4
    assert found.ess_token == pytest.approx(3 / 6)  # three tokens share all the weight
    assert found.ess_seq == pytest.approx(1 / 3)


def test_nothing_measured_has_no_summary():
    meter = OffPolicyMeter()
    meter.add(PROXIMAL, BEHAVIOR, torch.zeros_like(MASK), SIGNS)
    meter.merge(OffPolicyMeter().state)
    assert all(meter.summary(cell) is None for cell in CELLS)


def test_the_estimates_have_the_expectations_that_they_are_named_after():
    """Every completion of an enumerated policy, repeated in proportion to its chance."""
    policy = DriftedPolicy()
    proximal, behavior = policy.logprobs().detach(), policy.drifted(0.5)
    chance = behavior.sum(1).exp()
    counts = (chance * 200_000).round().long()
    rows = torch.arange(len(counts)).repeat_interleave(counts)
    meter = OffPolicyMeter()
    mask = EVERY[rows]
    meter.add(proximal[rows], behavior[rows], mask, torch.ones(mask.shape))
    found = meter.summary()
    chi2 = (chance * (2 * (proximal - behavior).sum(1)).exp()).sum().item() - 1
    kl = (chance * (behavior - proximal).sum(1)).sum().item()
    assert found.chi2_seq == pytest.approx(chi2, rel=2e-3)
    assert found.ess_seq == pytest.approx(1 / (1 + chi2), rel=2e-3)
    assert found.kl_k1 == pytest.approx(kl / 4, rel=2e-3)
    assert found.kl_k3 == pytest.approx(kl / 4, rel=2e-3)
