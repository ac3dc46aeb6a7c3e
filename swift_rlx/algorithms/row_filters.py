"""Filters that drop whole completions which the policy has left too far behind: one decision for all tokens."""

from torch import Tensor

from ._checks import require_tensors
from .kl import k3, masked_log_ratio


def off_policy_sequence_mask(
    logprobs_BT: Tensor, behavior_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, delta: float
) -> Tensor:
    """[B] bool, False for rows to drop: negative advantage and mean_t(log behavior - log policy) > delta.

    Advantages that differ between tokens are averaged: the row is kept or dropped as a whole.

    Args:
        logprobs_BT: [B, T] log-probs under the current policy; no gradient is taken.
        behavior_BT: [B, T] log-probs under the policy that sampled.
        advantages_BT: [B, T]; not read where the mask is False.
        mask_BT: [B, T] bool.
        delta: nats per token.

    Raises:
        ValueError: shapes differ, or a dtype is wrong.

    Source: DeepSeek-V3.2, arXiv 2512.02556 (off-policy sequence masking).
    """
    values = {"logprobs_BT": logprobs_BT, "behavior_BT": behavior_BT, "advantages_BT": advantages_BT}
    require_tensors("off_policy_sequence_mask", "BT", mask_BT, **values)
    distance_B = _row_mean(-masked_log_ratio(logprobs_BT.detach(), behavior_BT, mask_BT), mask_BT)
    return ~((distance_B > delta) & (advantages_BT.where(mask_BT, 0.0).sum(-1) < 0))


def k3_row_filter(proximal_BT: Tensor, behavior_BT: Tensor, mask_BT: Tensor, largest: float) -> Tensor:
    """[B] bool, False for rows to drop: mean_t(ratio_t - 1 - log ratio_t) > largest, ratio = proximal / behavior.

    That mean estimates KL(behavior || proximal) per token and is never negative. Arguments as above.

    Raises:
        ValueError: shapes differ, or a dtype is wrong.
    """
    # k3 of (a, b) is the estimator of KL(a || b) on samples of a.
    return _row_mean(k3(behavior_BT.detach(), proximal_BT.detach(), mask_BT), mask_BT) <= largest


def _row_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return values_BT.sum(-1) / mask_BT.sum(-1).clamp(min=1)
