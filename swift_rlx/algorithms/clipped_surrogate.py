"""PPO's clipped surrogate on log-ratios of any shape, the common part of the sequence and the token loss."""

from typing import NamedTuple

import torch
from torch import Tensor

from .kl import MAX_LOG_RATIO


class ClippedSurrogate(NamedTuple):
    """Elementwise, in the shape of the log-ratio; only `loss` carries a gradient."""

    loss: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor


def clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, epsilon_low: float, epsilon_high: float
) -> ClippedSurrogate:
    """-min(rho A, clip(rho, 1 - epsilon_low, 1 + epsilon_high) A) with rho = exp(log_ratio).

    The gradient vanishes exactly where rho > 1 + epsilon_high and A > 0, or rho < 1 - epsilon_low and A < 0.

    Args:
        log_ratio: carries the gradient; clamped to +-20 before exp.
        advantages: same shape, finite; taken without gradient.
        epsilon_low: from 0 to 1.
        epsilon_high: at least 0.

    Raises:
        ValueError: a clip bound is out of range.

    Source: Schulman et al. 2017, arXiv 1707.06347, equation 7.
    """
    if not (0.0 <= epsilon_low <= 1.0 and epsilon_high >= 0.0):
        raise ValueError(
            "the clip range takes epsilon_low from 0 to 1 and epsilon_high of at least 0, "
            f"got epsilon_low {epsilon_low} and epsilon_high {epsilon_high}"
        )
    low, high = 1.0 - epsilon_low, 1.0 + epsilon_high
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    advantages = advantages.detach().to(ratio.dtype)
    loss = -torch.min(ratio * advantages, ratio.clamp(low, high) * advantages)
    ratio = ratio.detach()
    return ClippedSurrogate(loss, ratio, (ratio < low) & (advantages < 0), (ratio > high) & (advantages > 0))
