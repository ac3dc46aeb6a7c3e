"""The loss of both REINFORCE++ variants: PPO's clipped surrogate, one ratio and one advantage per token."""

from typing import NamedTuple

from torch import Tensor

from ._checks import require_tensors
from .clipped_surrogate import clipped_surrogate
from .kl import masked_log_ratio


class TokenLoss(NamedTuple):
    """Per token, shape [B, T] each; only `loss_BT` carries a gradient."""

    loss_BT: Tensor
    """Loss of the token, 0 where the mask is False."""
    ratio_BT: Tensor
    """Importance ratio of the token, 1 where the mask is False."""
    clipped_low_BT: Tensor
    """True where the lower bound removed the gradient (ratio < 1 - epsilon_low, A < 0)."""
    clipped_high_BT: Tensor
    """True where the upper bound removed the gradient (ratio > 1 + epsilon_high, A > 0)."""


def token_ppo_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    epsilon_low: float,
    epsilon_high: float,
) -> TokenLoss:
    """-min(rho_t A_t, clip(rho_t, 1 - epsilon_low, 1 + epsilon_high) A_t) with one ratio rho_t per token.

    rho_t = exp(logprobs_t - old_logprobs_t). The caller divides the sum of `loss_BT` by the number of sampled
    tokens of the whole batch: a global token mean, not a mean of per-sequence means.

    Args:
        logprobs_BT: [B, T] log-probs of the sampled tokens under the current policy.
        old_logprobs_BT: [B, T] the same under the policy at the start of the batch (PPO's anchor).
        advantages_BT: [B, T] advantages; not read where the mask is False.
        mask_BT: [B, T] bool.
        epsilon_low, epsilon_high: half widths of the clip range.

    Raises:
        ValueError: shapes differ, a dtype is wrong, or a clip bound is out of range.

    Source: Schulman et al. 2017, arXiv 1707.06347, equation 7; Hu et al. 2025, arXiv 2501.03262.
    """
    values = {"logprobs_BT": logprobs_BT, "old_logprobs_BT": old_logprobs_BT, "advantages_BT": advantages_BT}
    require_tensors("token_ppo_loss", "BT", mask_BT, **values)
    log_ratio_BT = masked_log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    advantages_BT = advantages_BT.where(mask_BT, 0.0)
    return TokenLoss(*clipped_surrogate(log_ratio_BT, advantages_BT, epsilon_low, epsilon_high))
