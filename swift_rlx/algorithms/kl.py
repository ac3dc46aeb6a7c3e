"""The three per-token estimators of KL(policy || reference) on tokens that the policy sampled.

With d = logprobs - ref_logprobs: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d.
As a value (in the reward) k1 and k3 are unbiased, k2 is not. As a loss (differentiated through the log-probs)
k2 has the gradient of KL(policy || ref), k3 that of KL(ref || policy), and k1 none in expectation.
All are in nats, 0 where the mask is False, and let the gradient through their first argument only.

Source: Schulman 2020, "Approximating KL Divergence"; k2 as a loss: Hu et al. 2025, arXiv 2501.03262.
"""

import torch
from torch import Tensor

from ._checks import compute_dtype, require_tensors

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before exp (e^20 = 4.9e8), the customary bound; no gradient beyond it."""


def k1(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] d: unbiased, may be negative. The estimator for KL in the reward.

    Raises:
        ValueError: shapes differ, or a dtype is wrong.
    """
    return _log_ratio("k1", logprobs_BT, ref_logprobs_BT, mask_BT)


def k2(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] d^2 / 2: the estimator for KL in the loss (its gradient is that of KL(policy || ref)).

    Raises:
        ValueError: shapes differ, or a dtype is wrong.
    """
    return _log_ratio("k2", logprobs_BT, ref_logprobs_BT, mask_BT).square() / 2


def k3(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] exp(-d) - 1 + d: unbiased and never negative. The estimator for a metric.

    d is clamped from below only, since exp(-d) of a large d is a harmless 0; `expm1` keeps the digits of a
    small d.

    Raises:
        ValueError: shapes differ, or a dtype is wrong.
    """
    d = _log_ratio("k3", logprobs_BT, ref_logprobs_BT, mask_BT).clamp(min=-MAX_LOG_RATIO)
    return torch.expm1(-d) + d


def sequence_kl(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B] sum of k1 over the completion: what RLOO subtracts, times beta, from the reward.

    Raises:
        ValueError: shapes differ, or a dtype is wrong.
    """
    return _log_ratio("sequence_kl", logprobs_BT, ref_logprobs_BT, mask_BT).sum(-1)


def _log_ratio(caller: str, logprobs_BT: Tensor, ref_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    require_tensors(caller, "BT", mask_BT, logprobs_BT=logprobs_BT, ref_logprobs_BT=ref_logprobs_BT)
    return masked_log_ratio(logprobs_BT, ref_logprobs_BT, mask_BT)


def masked_log_ratio(logprobs_BT: Tensor, anchor_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] logprobs - anchor where the mask is True, else 0; unchecked, gradient through the first only.

    Both sides are masked before the subtraction: inf - inf is NaN, and NaN * 0 is NaN in the gradient too.
    """
    dtype = torch.promote_types(compute_dtype(logprobs_BT), anchor_logprobs_BT.dtype)
    logprobs = logprobs_BT.to(dtype).where(mask_BT, 0.0)
    return logprobs - anchor_logprobs_BT.detach().to(dtype).where(mask_BT, 0.0)
