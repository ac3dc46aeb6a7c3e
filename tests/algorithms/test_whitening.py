"""masked_whiten: global moments over the sampled tokens of all ranks."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from swift_rlx.algorithms import Moments, group_centered, masked_moments, masked_whiten, whiten

F64 = torch.float64
NAN = math.nan
MASK = tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool()
RETURNS = tensor([[0.95, 0.97, 0.96], [-0.04, -0.01, NAN], [0.52, NAN, NAN]], dtype=F64)
DISCOUNTED = tensor([[0.7666, 0.874, 0.96], [-0.039, -0.01, NAN], [0.52, NAN, NAN]], dtype=F64)


def filled(values, mask):
    """[B, T] from the values at the masked positions."""
    result = torch.zeros(mask.shape, dtype=F64)
    result[mask] = tensor(values, dtype=F64)
    return result


def as_if_padded(whitened, values, mask):
    """What the peers' (x - mean) * rsqrt(variance + 1e-8) gives, from our result without the 1e-8."""
    variance = masked_moments(values, mask, unbiased=True).variance
    return whitened * math.sqrt(variance / (variance + 1e-8))


def lengths_mask(*lengths):
    return torch.arange(max(lengths)) < tensor(lengths)[:, None]


@pytest.mark.parametrize(
    ("values", "unbiased", "expected"),
    [
        (
            RETURNS,
            False,
            [0.8882101672, 0.9335655800, 0.9108878736, -1.3568827661, -1.2888496469, -0.0869312079],
        ),
        (
            RETURNS,
            True,
            [0.8108212233, 0.8522248602, 0.8315230418, -1.2386588049, -1.1765533495, -0.0793569708],
        ),
        (
            DISCOUNTED,
            False,
            [0.6324908149, 0.8992297424, 1.1128195725, -1.3682995012, -1.2962750235, 0.0200343949],
        ),
    ],
)
def test_three_completions(values, unbiased, expected):
    got = masked_whiten(values, MASK, unbiased=unbiased)
    if unbiased:
        got = as_if_padded(got, values, MASK)
    torch.testing.assert_close(got, filled(expected, MASK), rtol=0, atol=1e-9)


def centered_example():
    """Two prompts of two completions with lengths 3, 1, 2, 2 and centered rewards +-.5, +-.2."""
    mask = lengths_mask(3, 1, 2, 2)
    rewards, ids = tensor([1.0, 0.0, 0.6, 0.2], dtype=F64), tensor([0, 0, 1, 1])
    centered = group_centered(rewards, ids, torch.ones(4, dtype=torch.bool))
    return centered[:, None].expand(4, 3), mask


@pytest.mark.parametrize(
    ("unbiased", "expected"),
    [
        (False, [1.0425720703, -1.7376201171, 0.2085144141, -0.9035624609]),
        (True, [0.9752368400, -1.6253947323, 0.1950473683, -0.8452052606]),
    ],
)
def test_centered_rewards_weighted_by_token(unbiased, expected):
    values, mask = centered_example()
    got = masked_whiten(values, mask, unbiased=unbiased)
    if unbiased:
        got = as_if_padded(got, values, mask)
    torch.testing.assert_close(got[:, 0], tensor(expected, dtype=F64), rtol=0, atol=1e-9)


def test_weighting_by_sequence_keeps_the_signs_of_centered_rewards():
    values, mask = centered_example()
    got = masked_whiten(values, mask, weighting="sequence")
    std = math.sqrt((0.25 + 0.25 + 0.04 + 0.04) / 4)
    expected = tensor([0.5 / std, -0.5 / std, 0.2 / std, -0.2 / std], dtype=F64)
    torch.testing.assert_close(got[:, 0], expected, rtol=0, atol=1e-12)


def test_shift_of_the_token_mean_is_readable_from_the_moments():
    values, mask = centered_example()
    assert masked_moments(values, mask).mean == pytest.approx((3 * 0.5 - 0.5 + 2 * 0.2 - 2 * 0.2) / 8)
    assert masked_moments(values, mask, weighting="sequence").mean == pytest.approx(0.0, abs=1e-15)
    assert masked_moments(values, mask).weight == 8
    assert masked_moments(values, mask, weighting="sequence").weight == pytest.approx(4)


def test_sequence_moments_are_means_of_row_means():
    values = tensor([[1.0, 2.0, 6.0], [4.0, NAN, NAN], [NAN, NAN, NAN]], dtype=F64)
    mask = tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
    moments = masked_moments(values, mask, weighting="sequence")
    mean = (3.0 + 4.0) / 2
    variance = (((1 - mean) ** 2 + (2 - mean) ** 2 + (6 - mean) ** 2) / 3 + (4 - mean) ** 2) / 2
    assert moments.mean == pytest.approx(mean)
    assert moments.variance == pytest.approx(variance)


def test_equals_the_statistics_module():
    flat = RETURNS[MASK].tolist()
    moments = masked_moments(RETURNS, MASK)
    assert moments.mean == pytest.approx(statistics.fmean(flat))
    assert moments.variance == pytest.approx(statistics.pvariance(flat))
    assert masked_moments(RETURNS, MASK, unbiased=True).variance == pytest.approx(statistics.variance(flat))


def test_differs_from_normalizing_each_group():
    """Per-group mean and standard deviation (GRPO) would make the two prompts equal."""
    values, mask = centered_example()
    got = masked_whiten(values, mask)[:, 0].abs()
    assert got[0] > 4 * got[2]


@pytest.mark.parametrize("weighting", ["token", "sequence"])
def test_result_has_mean_zero_and_variance_one(weighting):
    got = masked_whiten(RETURNS, MASK, weighting=weighting)
    moments = masked_moments(got, MASK, weighting=weighting)
    assert moments.mean == pytest.approx(0, abs=1e-14)
    assert moments.variance == pytest.approx(1)
    assert (got[~MASK] == 0).all()


@pytest.mark.parametrize("unbiased", [False, True])
def test_a_single_sampled_token_gives_zero(unbiased):
    mask = tensor([[False, True], [False, False]])
    assert masked_whiten(torch.full((2, 2), 3.0), mask, unbiased=unbiased).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("value", [0.1, 1e6 + 0.1])
def test_values_without_spread_give_zeros(value):
    values = torch.full((5, 3), value)
    assert (masked_whiten(values, torch.ones(5, 3, dtype=torch.bool)) == 0).all()


def test_variance_below_the_floor_gives_zeros_and_above_it_not():
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert masked_whiten(tensor([[0.0, 1e-4]], dtype=F64), mask).tolist() == [[0, 0]]
    got = masked_whiten(tensor([[0.0, 3e-4]], dtype=F64), mask)
    torch.testing.assert_close(got, tensor([[-1.0, 1.0]], dtype=F64))


def test_equal_rewards_with_kl_stay_finite():
    values = tensor([[1.0, 1.01], [0.99, 1.0]])
    got = masked_whiten(values, torch.ones(2, 2, dtype=torch.bool))
    assert got.isfinite().all()
    assert got.abs().max() > 1


def test_batch_without_a_sampled_token_gives_zeros_and_weight_zero():
    values, mask = torch.full((2, 2), NAN), torch.zeros(2, 2, dtype=torch.bool)
    assert masked_moments(values, mask) == Moments(0.0, 0.0, 0.0)
    assert (masked_whiten(values, mask) == 0).all()


@pytest.mark.parametrize("bad", [NAN, math.inf])
def test_non_finite_value_under_the_mask_is_refused(bad):
    with pytest.raises(ValueError, match="got NaN or infinity at a position with mask True"):
        masked_whiten(tensor([[1.0, bad]]), tensor([[True, True]]))


def test_large_offset_costs_no_digits():
    """The mean 1e7 + 2/3 does not exist in float32, and E[x^2] - E[x]^2 would be off by millions."""
    values = tensor([[1e7, 1e7 + 1, 1e7 + 1]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    assert masked_moments(values, mask).variance == pytest.approx(2 / 9)
    got = masked_whiten(values, mask)
    torch.testing.assert_close(got, tensor([[-(2**0.5), 0.5**0.5, 0.5**0.5]]))


def test_one_batch_differs_from_its_two_halves_whitened_apart():
    whole = masked_whiten(RETURNS, MASK)
    halves = torch.cat([masked_whiten(RETURNS[:1], MASK[:1]), masked_whiten(RETURNS[1:], MASK[1:])])
    assert (whole - halves).abs().max() > 0.5


@st.composite
def token_batches(draw):
    rows, width = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    values = [draw(st.lists(st.floats(-5, 5, width=32), min_size=width, max_size=width)) for _ in range(rows)]
    mask = [draw(st.lists(st.booleans(), min_size=width, max_size=width)) for _ in range(rows)]
    return tensor(values, dtype=F64), tensor(mask)


@given(
    token_batches(), st.sampled_from([1, 2, 4]), st.sampled_from(["token", "sequence"]), st.integers(0, 2**32)
)
@settings(max_examples=50)
def test_any_split_over_ranks_gives_the_same_advantages(thread_ranks, batch, ranks, weighting, seed):
    values, mask = batch
    owner = torch.randint(ranks, (len(values),), generator=torch.Generator().manual_seed(seed))
    world = thread_ranks(ranks)

    def on_rank(rank):
        rows = owner == rank
        return masked_whiten(values[rows], mask[rows], weighting=weighting, reduce_sum=world.reduce_sum(rank))

    whole = masked_whiten(values, mask, weighting=weighting)
    for rank, part in enumerate(world.run(on_rank)):
        torch.testing.assert_close(part, whole[owner == rank], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_in_threads_agree_also_with_one_that_is_empty(thread_ranks, ranks):
    torch.manual_seed(0)
    values, mask = torch.randn(8, 5, dtype=F64), torch.rand(8, 5) < 0.7
    mask[-(8 // ranks) :] = False  # the last rank has no sampled token
    world = thread_ranks(ranks)
    values_by_rank, mask_by_rank = values.chunk(ranks), mask.chunk(ranks)
    parts = world.run(
        lambda r: masked_whiten(values_by_rank[r], mask_by_rank[r], reduce_sum=world.reduce_sum(r))
    )
    torch.testing.assert_close(torch.cat(parts), masked_whiten(values, mask), rtol=0, atol=1e-12)
    assert world.calls == [2] * ranks


def test_a_bad_value_on_one_rank_is_refused_on_all_and_nobody_waits(thread_ranks):
    values, mask = tensor([[1.0], [NAN]]), torch.ones(2, 1, dtype=torch.bool)
    world = thread_ranks(2)
    results = world.run(
        lambda r: masked_whiten(values[r : r + 1], mask[r : r + 1], reduce_sum=world.reduce_sum(r))
    )
    assert [type(result) for result in results] == [ValueError, ValueError]


def test_all_ranks_empty_take_part_and_get_zeros(thread_ranks):
    world = thread_ranks(2)
    empty, mask = torch.full((1, 2), NAN), torch.zeros(1, 2, dtype=torch.bool)
    results = world.run(lambda r: masked_whiten(empty, mask, reduce_sum=world.reduce_sum(r)))
    assert all((result == 0).all() for result in results)
    assert world.calls == [2, 2]


@given(token_batches(), st.integers(1, 4), st.sampled_from(["token", "sequence"]))
def test_padding_and_row_order_change_nothing(batch, padding, weighting):
    values, mask = batch
    pad = torch.nn.functional.pad
    wide = masked_whiten(
        pad(values.flip(0), (0, padding), value=NAN), pad(mask.flip(0), (0, padding)), weighting=weighting
    )
    expected = masked_whiten(values, mask, weighting=weighting).flip(0)
    torch.testing.assert_close(wide[:, : values.shape[1]], expected, rtol=0, atol=1e-9)


@given(token_batches(), st.floats(-20, 20), st.floats(0.5, 8))
def test_shift_and_positive_scale_change_nothing(batch, shift, scale):
    values, mask = batch
    if masked_moments(values, mask).variance < 1e-6:
        return
    moved = masked_whiten(scale * values + shift, mask)
    torch.testing.assert_close(moved, masked_whiten(values, mask), rtol=0, atol=1e-7)


def test_whiten_takes_moments_of_another_call():
    got = whiten(tensor([[5.0, 7.0]]), tensor([[True, False]]), Moments(4, 3.0, 4.0))
    assert got.tolist() == [[1.0, 0.0]]


def test_dtype_is_kept_and_no_gradient_passes():
    values = torch.randn(2, 3, requires_grad=True)
    got = masked_whiten(values, torch.ones(2, 3, dtype=torch.bool))
    assert got.dtype == torch.float32
    assert not got.requires_grad


def test_unknown_weighting_is_refused():
    with pytest.raises(ValueError, match="takes 'token' or 'sequence' as weighting, got 'row'"):
        masked_whiten(RETURNS, MASK, weighting="row")


def test_bessel_with_sequence_weighting_is_refused():
    with pytest.raises(ValueError, match="unbiased=True with weighting 'token' only"):
        masked_whiten(RETURNS, MASK, weighting="sequence", unbiased=True)
