"""What every weight function returns, and the log-ratio that all of them start from."""

from typing import NamedTuple

from torch import Tensor

from ._checks import require_tensors
from .kl import masked_log_ratio


class ImportanceWeights(NamedTuple):
    """Weights of the samples of another policy; no part carries a gradient. [B, T], or [B] for whole rows."""

    weights: Tensor
    """Finite and at least 0; 1 where there is nothing to weigh."""
    clipped_low: Tensor
    """bool: the ratio was under the lower bound, so that the weight is not the ratio."""
    clipped_high: Tensor
    """bool: the same at the upper bound."""


def behavior_log_ratio(proximal_BT: Tensor, behavior_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T] log(proximal / behavior) of the sampled tokens, 0 where the mask is False, without gradient.

    Args:
        proximal_BT: [B, T] log-probs under the trainer's weights at the pick-up of the batch.
        behavior_BT: [B, T] log-probs under the policy that sampled the token, as its engine recorded them.
        mask_BT: [B, T] bool.

    Raises:
        ValueError: shapes differ, or a dtype is wrong.
    """
    require_tensors("behavior_log_ratio", "BT", mask_BT, proximal_BT=proximal_BT, behavior_BT=behavior_BT)
    return masked_log_ratio(proximal_BT.detach(), behavior_BT, mask_BT)
