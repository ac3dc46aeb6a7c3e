"""k1, k2, k3: their values, what they estimate, and what their gradients are."""

import math

import pytest
import torch
from torch import tensor

from swift_rlx.algorithms import k1, k2, k3, sequence_kl

F64 = torch.float64
P = tensor([0.6, 0.3, 0.1], dtype=F64)
REF = tensor([0.3, 0.3, 0.4], dtype=F64)
MU = tensor([0.2, 0.5, 0.3], dtype=F64)
KL = 0.2772588722
ALL = torch.ones(3, 1, dtype=torch.bool)
ESTIMATORS = [k1, k2, k3]


def expected_value(estimator, weights):
    """Exact expectation over the three tokens, sampled with `weights`."""
    values = estimator(P.log()[:, None], REF.log()[:, None], ALL)[:, 0]
    return (weights * values).sum().item()


@pytest.mark.parametrize(("estimator", "value"), [(k1, KL), (k2, 0.2402265070), (k3, KL)])
def test_expected_value_on_samples_of_the_policy(estimator, value):
    assert expected_value(estimator, P) == pytest.approx(value, abs=1e-10)


def test_the_table_value_is_the_true_kl():
    assert (P * (P / REF).log()).sum().item() == pytest.approx(KL, abs=1e-10)


@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [
        (k1, [0.0, 0.0, 0.0]),
        (k2, [0.2495329850, -0.0831776617, -0.1663553233]),
        (k3, [0.3, 0.0, -0.3]),
    ],
)
def test_expected_gradient_as_a_loss(estimator, gradient):
    logits = P.log().requires_grad_()
    values = estimator(logits.log_softmax(-1)[:, None], REF.log()[:, None], ALL)[:, 0]
    (got,) = torch.autograd.grad((P * values).sum(), logits)
    torch.testing.assert_close(got, tensor(gradient, dtype=F64), rtol=0, atol=1e-10)


def test_k2_has_the_gradient_of_the_true_kl():
    logits = P.log().requires_grad_()
    probabilities = logits.softmax(-1)
    (true,) = torch.autograd.grad((probabilities * (probabilities / REF).log()).sum(), logits)
    values = k2(logits.log_softmax(-1)[:, None], REF.log()[:, None], ALL)[:, 0]
    (got,) = torch.autograd.grad((P * values).sum(), logits)
    torch.testing.assert_close(got, true, rtol=0, atol=1e-15)


def test_samples_of_another_policy_need_importance_weights():
    assert expected_value(k1, MU) == pytest.approx(-KL, abs=1e-10)
    assert expected_value(k3, MU) == pytest.approx(0.5227411278, abs=1e-10)
    assert expected_value(k1, MU * (P / MU)) == pytest.approx(KL, abs=1e-10)
    assert expected_value(k3, MU * (P / MU)) == pytest.approx(KL, abs=1e-10)


def test_k1_may_be_negative_and_the_others_not():
    logprobs, ref = tensor([[-2.0]]), tensor([[-1.0]])
    mask = torch.ones(1, 1, dtype=torch.bool)
    assert k1(logprobs, ref, mask).item() == -1.0
    assert k2(logprobs, ref, mask).item() == 0.5
    assert k3(logprobs, ref, mask).item() == pytest.approx(math.e - 2)


def test_sequence_kl_sums_the_sampled_tokens():
    logprobs = tensor([[-1.0, -2.0, math.nan], [-1.0, -1.0, -1.0]])
    ref = tensor([[-1.5, -2.0, -1.0], [-0.5, 0.0, -3.0]])
    mask = tensor([[True, True, False], [True, True, True]])
    assert sequence_kl(logprobs, ref, mask).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_garbage_under_the_mask_reaches_neither_value_nor_gradient(estimator, garbage):
    logprobs = tensor([[-1.0, garbage]], requires_grad=True)
    ref = tensor([[-1.2, garbage]])
    values = estimator(logprobs, ref, tensor([[True, False]]))
    values.sum().backward()
    assert values[0, 1] == 0
    assert logprobs.grad.isfinite().all()
    assert logprobs.grad[0, 1] == 0
    assert logprobs.grad[0, 0] != 0


@pytest.mark.parametrize("d", [-1e4, -25.0, 25.0, 1e4])
@pytest.mark.parametrize("estimator", [k2, k3])
def test_far_log_ratios_stay_finite(estimator, d):
    logprobs = tensor([[d]], requires_grad=True)
    value = estimator(logprobs, tensor([[0.0]]), tensor([[True]]))
    value.backward()
    assert value.isfinite().all()
    assert logprobs.grad.isfinite().all()
    assert logprobs.grad.item() * d >= 0, "a KL loss never pushes the policy further away"


def test_k3_keeps_its_digits_for_small_differences():
    d = 1e-3
    value = k3(tensor([[d]]), tensor([[0.0]]), tensor([[True]])).item()
    assert value == pytest.approx(d * d / 2, rel=1e-3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradient_goes_through_the_first_argument_only(estimator):
    logprobs = torch.full((1, 2), -1.0, requires_grad=True)
    ref = torch.full((1, 2), -2.0, requires_grad=True)
    estimator(logprobs, ref, torch.ones(1, 2, dtype=torch.bool)).sum().backward()
    assert logprobs.grad is not None
    assert ref.grad is None


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradcheck(estimator):
    logprobs = tensor([[-1.0, -0.3], [-2.0, -0.7]], dtype=F64, requires_grad=True)
    ref = tensor([[-1.2, -0.1], [-1.0, -0.75]], dtype=F64)
    mask = tensor([[True, True], [True, False]])
    assert torch.autograd.gradcheck(lambda x: estimator(x, ref, mask), logprobs)


def test_bfloat16_is_computed_in_float32():
    logprobs = torch.full((1, 4000), -1.0, dtype=torch.bfloat16)
    ref = torch.full((1, 4000), -1.0078125, dtype=torch.bfloat16)
    got = sequence_kl(logprobs, ref, torch.ones(1, 4000, dtype=torch.bool))
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(4000 * 0.0078125)
