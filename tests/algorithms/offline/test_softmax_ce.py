"""Softmax-weighted cross-entropy and its two KL terms."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.nn.functional import cross_entropy

from swift_rlx.algorithms.offline import (
    MicroBatch,
    SoftmaxCE,
    SoftmaxCEForwardKL,
    StoredRows,
    softmax_weights,
    vocabulary_kl,
    with_forward_kl,
)
from swift_rlx.algorithms.offline.weighted_ce import WeightedCE

F64 = torch.float64
LOGITS = tensor([[0.2, -0.1, 0.4], [0.0, 0.3, -0.3]], dtype=F64)
CANDIDATES = tensor([[0, 1], [2, 0], [1, 1]])
THETA = tensor([0.8, 0.1, -0.9], dtype=F64)
ONE_PROMPT = torch.zeros(3, dtype=torch.long)
ALL = torch.ones(3, dtype=torch.bool)


def part_of(logits):
    """Three candidates over two positions that do not depend on each other."""
    expanded = logits.expand(3, 2, 3)
    logprobs = expanded.log_softmax(-1).gather(-1, CANDIDATES[..., None])[..., 0]
    mask = torch.ones(3, 2, dtype=torch.bool)
    reference = torch.zeros(3, 2, 3, dtype=F64)
    return MicroBatch(torch.arange(3), mask, logprobs, logits_bTV=expanded, reference_logits_bTV=reference)


def test_three_candidates_by_hand():
    found = softmax_weights(THETA, ONE_PROMPT, ALL)
    weights = tensor([0.5954972685, 0.2957151920, 0.1087875396], dtype=F64)
    torch.testing.assert_close(found.weights_B, weights, rtol=0, atol=1e-10)
    logits = LOGITS.clone().requires_grad_()
    part = part_of(logits)
    sums = tensor([-1.9143294876, -2.0143294876, -2.2143294876], dtype=F64)
    torch.testing.assert_close(part.logprobs_bT.sum(1), sums, rtol=0, atol=1e-10)
    loss = WeightedCE("ce", found.weights_B, 6, 0.0, {}).loss(part).loss
    assert loss.item() == pytest.approx(1.9765372686, abs=1e-10)
    loss.backward()
    gradient = [[-0.2579127307, 0.1413012371, 0.1166114936], [0.0278385119, -0.2675329911, 0.2396944792]]
    torch.testing.assert_close(logits.grad, tensor(gradient, dtype=F64), rtol=0, atol=1e-10)


def test_the_kl_over_the_vocabulary_is_added():
    """Its sum over the two positions is .0494509952; the loss has the mean over tokens."""
    weights = softmax_weights(THETA, ONE_PROMPT, ALL).weights_B
    part = part_of(LOGITS)
    kl = vocabulary_kl(part.logits_bTV, part.reference_logits_bTV, part.mask_bT)
    assert kl[0].sum().item() == pytest.approx(0.0494509952, abs=1e-10)
    found = WeightedCE("ce", weights, 6, 0.06, {}).loss(part)
    assert found.loss.item() == pytest.approx(1.9780207985, abs=1e-10)
    assert found.metrics["ce/kl"] == pytest.approx(0.0494509952 / 2, abs=1e-10)


def test_the_forward_kl_is_extra_weight_on_the_candidates():
    weights = with_forward_kl(softmax_weights(THETA, ONE_PROMPT, ALL).weights_B, ONE_PROMPT, 0.03)
    loss = WeightedCE("ce", weights, 6, 0.0, {}).loss(part_of(LOGITS)).loss
    assert loss.item() == pytest.approx(2.0379671533, abs=1e-10)


def test_one_candidate_is_fine_tuning_on_it():
    weights = softmax_weights(THETA[:1], ONE_PROMPT[:1], ALL[:1], skip_uninformative=False).weights_B
    logits = LOGITS[None]
    part = MicroBatch(
        torch.arange(1),
        torch.ones(1, 2, dtype=torch.bool),
        logits.log_softmax(-1).gather(-1, CANDIDATES[:1, :, None])[..., 0],
    )
    loss = WeightedCE("ce", weights, 2, 0.0, {}).loss(part).loss
    torch.testing.assert_close(loss, cross_entropy(LOGITS, CANDIDATES[0], reduction="sum"))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=2, max_size=6), st.floats(-1e6, 1e6), st.floats(0.1, 5))
def test_a_constant_added_to_a_prompt_changes_nothing(advantages, shift, tau):
    ids, valid = torch.zeros(len(advantages), dtype=torch.long), torch.ones(len(advantages), dtype=torch.bool)
    values = tensor(advantages, dtype=F64)
    plain, moved = (
        softmax_weights(one, ids, valid, tau, skip_uninformative=False) for one in (values, values + shift)
    )
    torch.testing.assert_close(plain.weights_B, moved.weights_B, rtol=0, atol=1e-7)
    assert plain.weights_B.sum().item() == pytest.approx(1.0)


def test_prompts_are_weighed_apart_and_those_without_a_difference_are_skipped():
    advantages = tensor([800.0, 1.0, -1.0, 2.0, 2.0, math.nan], dtype=F64)
    ids, valid = tensor([4, 4, 9, 1, 1, 9]), tensor([True, True, True, True, True, False])
    found = softmax_weights(advantages, ids, valid)
    assert found.weights_B.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert (found.prompts, found.skipped) == (1, 2)
    alike = softmax_weights(advantages, ids, valid, skip_uninformative=False)
    assert alike.weights_B.tolist() == [1.0, 0.0, 1.0, 0.5, 0.5, 0.0]
    assert (alike.prompts, alike.skipped) == (3, 0)


def test_a_correction_for_another_sampler_is_added_to_the_exponent():
    """Candidates of mu, weights for pi_ref: the probabilities that one would have of pi_ref's own candidates."""
    correction = tensor([0.5, -0.3, 0.0], dtype=F64)
    found = softmax_weights(THETA, ONE_PROMPT, ALL, 2.0, log_correction_B=correction).weights_B
    torch.testing.assert_close(found, (THETA / 2 + correction).softmax(0))


@pytest.mark.parametrize(
    ("group_size", "pinned"), [(2, (0.97568, 0.55370)), (3, (0.98871, 0.38148)), (4, (0.99358, 0.29034))]
)
def test_more_candidates_come_nearer_to_the_optimum_of_the_regularized_reward(toy_policy, group_size, pinned):
    """Exact expectation over candidates of the reference; the target is pi* ~ reference * exp(R)."""
    chance = toy_policy.probabilities()
    target = chance * toy_policy.rewards.exp()
    target = target / target.sum()
    true = toy_policy.gradient(-(target * toy_policy.logprobs().sum(1)).sum())
    groups = torch.cartesian_prod(*[torch.arange(9)] * group_size)
    ids = torch.arange(len(groups)).repeat_interleave(group_size)
    weights = softmax_weights(
        toy_policy.rewards[groups.flatten()],
        ids,
        torch.ones(len(ids), dtype=torch.bool),
        skip_uninformative=False,
    ).weights_B.view(groups.shape)
    of_group = chance[groups].prod(1, keepdim=True)
    got = toy_policy.gradient(-(of_group * weights * toy_policy.logprobs().sum(1)[groups]).sum())
    cosine = torch.cosine_similarity(got, true, dim=0).item()
    error = ((got - true).norm() / true.norm()).item()
    assert (cosine, error) == (pytest.approx(pinned[0], abs=1e-5), pytest.approx(pinned[1], abs=1e-5))


def rows_of(scores, ids):
    return StoredRows(
        group_ids_B=tensor(ids),
        tokens_B=torch.full((len(ids),), 2),
        valid_B=torch.ones(len(ids), dtype=torch.bool),
        scores_BF=tensor(scores, dtype=F64),
    )


SOURCES = [[0.9, 7, 0], [0.8, 9, 0], [0.4, 6, -1], [0.7, 3, 0]]


def test_the_objective_takes_its_weights_from_bradley_terry():
    plan = SoftmaxCE().plan(rows_of([*SOURCES, [1, 1, 1], [1, 1, 1]], [0, 0, 0, 0, 5, 5]))
    expected = tensor([0.4156196899, 0.4156196899, 0.0559578093, 0.1128028109, 0, 0], dtype=F64)
    torch.testing.assert_close(plan.weights_B, expected, rtol=0, atol=1e-9)
    assert plan.metrics["softmax_ce/prompts"] == 1
    assert plan.metrics["softmax_ce/prompts_skipped"] == 1
    assert plan.metrics["softmax_ce/comparisons"] == 7


def test_the_loss_is_a_mean_over_prompts():
    once = SoftmaxCE().plan(rows_of(SOURCES, [0] * 4)).weights_B
    twice = SoftmaxCE().plan(rows_of(SOURCES * 2, [0] * 4 + [1] * 4)).weights_B
    torch.testing.assert_close(twice, torch.cat([once, once]) / 2)


def test_the_forward_kl_objective_adds_its_share_before_the_mean_over_prompts():
    plain = SoftmaxCE().plan(rows_of(SOURCES, [0] * 4)).weights_B
    found = SoftmaxCEForwardKL(beta=0.2).plan(rows_of(SOURCES, [0] * 4))
    torch.testing.assert_close(found.weights_B, plain + 0.05)
    assert found.beta == 0.0


def test_lengths_divide_the_weights_if_that_is_asked_for():
    rows = rows_of(SOURCES, [0] * 4)
    plain, per_token = (SoftmaxCE(length_norm=flag).plan(rows).weights_B for flag in (False, True))
    torch.testing.assert_close(per_token, plain / 2)


def test_the_temperature_sharpens_the_weights():
    rows = rows_of(SOURCES, [0] * 4)
    largest = [SoftmaxCE(tau=tau).plan(rows).metrics["softmax_ce/largest_weight"] for tau in (10, 1, 0.1)]
    assert largest == sorted(largest)
    assert largest[0] < 0.3


def test_wrong_inputs_are_refused():
    with pytest.raises(ValueError, match="tau above 0, got 0"):
        softmax_weights(THETA, ONE_PROMPT, ALL, 0.0)
    with pytest.raises(ValueError, match="finite advantages in valid rows"):
        softmax_weights(tensor([1.0, math.inf, 0.0]), ONE_PROMPT, ALL)


# --- the KL over the vocabulary --------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_tokens", [1, 2, 1000])
def test_the_kl_is_a_sum_over_the_vocabulary(chunk_tokens):
    draw = torch.Generator().manual_seed(0)
    logits, reference = (torch.randn(2, 3, 5, generator=draw, dtype=F64) for _ in range(2))
    mask = tensor([[True, True, False], [True, False, False]])
    logits[~mask], reference[~mask] = math.nan, math.inf
    got = vocabulary_kl(logits, reference, mask, chunk_tokens=chunk_tokens)
    for row, position in itertools.product(range(2), range(3)):
        p, q = logits[row, position].softmax(-1).tolist(), reference[row, position].softmax(-1).tolist()
        want = (
            math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) if mask[row, position] else 0.0
        )
        assert got[row, position].item() == pytest.approx(want, abs=1e-12)
    leaf = logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: vocabulary_kl(x, reference, mask, chunk_tokens=chunk_tokens).sum(),
        leaf.detach().nan_to_num(0.0).requires_grad_(),
    )


def test_the_kl_equals_ms_swift():
    from swift.rlhf_trainers import gkd_loss

    reference = torch.zeros(2, 3, dtype=F64)
    theirs = gkd_loss.jsd_loss(LOGITS, reference, beta=1)
    ours = vocabulary_kl(LOGITS[None], reference[None], torch.ones(1, 2, dtype=torch.bool))
    assert ours.sum().item() == pytest.approx(0.0494509952, abs=1e-9)
    torch.testing.assert_close(theirs.to(F64).sum(), ours.sum(), rtol=0, atol=1e-6)


def test_an_empty_mask_has_no_kl():
    mask = torch.zeros(1, 2, dtype=torch.bool)
    assert vocabulary_kl(LOGITS[None], LOGITS[None], mask).tolist() == [[0.0, 0.0]]


def test_shapes_that_differ_are_refused():
    with pytest.raises(
        ValueError, match=r"logits and reference logits \[B, T, V\] with a bool mask \[B, T\]"
    ):
        vocabulary_kl(LOGITS[None], LOGITS[None], torch.ones(1, 3, dtype=torch.bool))
