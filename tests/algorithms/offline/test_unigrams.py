"""Jensen-Shannon divergence of token frequencies, pooled and for single completions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from torch import tensor

from swift_rlx.algorithms.offline import (
    LengthThresholds,
    ReferenceTokens,
    js_distance,
    js_divergence,
    token_counts,
)

counts = st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any).map(lambda x: tensor(x).double())


def test_a_case_by_hand_in_bits():
    p, q = tensor([0.5, 0.5, 0.0, 0.0]), tensor([0.5, 0.0, 0.5, 0.0])
    assert js_divergence(p, q) == pytest.approx(0.5, abs=1e-12)
    assert js_divergence(p, q) * math.log(2) == pytest.approx(0.3465735903, abs=1e-10)  # in nats
    assert math.sqrt(js_divergence(p, q) * math.log(2)) == pytest.approx(0.5887050113, abs=1e-10)


def test_equal_is_zero_and_disjoint_is_one():
    assert js_divergence(tensor([1, 2, 3]), tensor([10, 20, 30])) == 0.0
    assert js_divergence(tensor([1, 1, 0, 0]), tensor([0, 0, 5, 2])) == 1.0


@settings(max_examples=50, deadline=None)
@given(counts, counts)
def test_it_is_symmetric_and_its_root_is_what_scipy_calls_it(p, q):
    assert js_divergence(p, q) == pytest.approx(js_divergence(q, p), abs=1e-12)
    theirs = jensenshannon(p.numpy(), q.numpy(), base=2)  # of equal ones maybe the root of -1e-17
    assert js_distance(p, q) == pytest.approx(0.0 if math.isnan(theirs) else theirs, abs=1e-7)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), counts)
def test_one_completion_needs_only_its_own_tokens(ids, reference):
    ids = tensor(ids)
    sparse = ReferenceTokens.of(reference).divergence(ids)
    assert sparse == pytest.approx(js_divergence(token_counts(ids, 4), reference), abs=1e-9)


def test_an_empty_completion_has_nothing_in_common():
    assert ReferenceTokens.of(torch.ones(3)).divergence(torch.zeros(0, dtype=torch.long)) == 1.0


def zipf_sample(size, seed):
    chance = 1 / torch.arange(1, 5001).double()
    return torch.multinomial(chance, size, replacement=True, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("size", "divergence"), [(200, 0.465), (1000, 0.300), (5000, 0.149)])
def test_a_short_sample_of_the_reference_is_far_from_it(size, divergence):
    """Why a fixed threshold cannot judge one completion."""
    reference = ReferenceTokens.of(1 / torch.arange(1, 5001).double())
    mean = sum(reference.divergence(zipf_sample(size, seed)) for seed in range(10)) / 10
    assert mean == pytest.approx(divergence, abs=0.01)


def test_calibrated_thresholds_pass_what_they_were_calibrated_on():
    lengths = [20, 25, 30, 100, 120, 500] * 20
    completions = [zipf_sample(length, seed) for seed, length in enumerate(lengths)]
    reference = ReferenceTokens.of(token_counts(torch.cat(completions), 5000))
    thresholds = LengthThresholds.calibrate(reference, completions)
    passed = sum(reference.divergence(one) <= thresholds.of(len(one)) for one in completions)
    assert 0.95 <= passed / len(completions) < 1.0
    assert thresholds.of(20) > thresholds.of(100) > thresholds.of(500)
    assert thresholds.of(40) == thresholds.of(31)  # none of 32 to 63 tokens: the bucket below
    assert thresholds.of(10**6) == thresholds.of(500)
    assert thresholds.of(0) == thresholds.of(20)


def test_what_has_no_distribution_is_refused():
    with pytest.raises(ValueError, match="at least 0 and finite, and one of them above 0"):
        js_divergence(torch.zeros(3), torch.ones(3))
    with pytest.raises(ValueError, match="one vocabulary, got 2 and 3 entries"):
        js_divergence(torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="at least one completion with a token"):
        LengthThresholds.calibrate(ReferenceTokens.of(torch.ones(3)), [torch.zeros(0)])
