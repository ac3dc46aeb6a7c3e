"""RLOO's loss: REINFORCE on whole completions, with PPO's clip for a batch that is used more than once."""

from typing import NamedTuple

from torch import Tensor

from ._checks import require_one_per_row, require_tensors
from .clipped_surrogate import clipped_surrogate
from .kl import masked_log_ratio


class SequenceLoss(NamedTuple):
    """Per sequence, shape [B] each; only `loss_B` carries a gradient."""

    loss_B: Tensor
    """Loss of the sequence, not divided by its length; 0 for a row without any sampled token."""
    ratio_B: Tensor
    """Importance ratio of the whole completion; 1 for a row without any sampled token."""
    clipped_low_B: Tensor
    """True where the lower bound removed the gradient (ratio < 1 - epsilon_low, A < 0)."""
    clipped_high_B: Tensor
    """True where the upper bound removed the gradient (ratio > 1 + epsilon_high, A > 0)."""


def sequence_ppo_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    epsilon_low: float,
    epsilon_high: float,
    token_weights_BT: Tensor | None = None,
) -> SequenceLoss:
    """-min(rho A, clip(rho, 1 - epsilon_low, 1 + epsilon_high) A) with one ratio rho per completion.

    rho = exp(sum_t (logprobs_t - old_logprobs_t)) is the product of the token ratios, not their geometric
    mean. On the first pass rho is 1 and the gradient is that of REINFORCE, -A * grad sum_t logprobs_t: a
    token sum, no length division. The caller divides the sum of `loss_B` by the number of valid rows.

    Weights w_t per token, for samples of another policy, stand in the exponent: rho = exp(sum_t w_t (logprobs_t -
    old_logprobs_t)). On the first pass rho is 1 as before, the gradient is -A * sum_t w_t grad logprobs_t, and the
    clip bounds the weighted move. A token of weight 0 does not train. (One weight per completion multiplies the loss.)

    Args:
        logprobs_BT: [B, T] log-probs of the sampled tokens under the current policy.
        old_logprobs_BT: [B, T] the same under the policy at the start of the batch (PPO's anchor).
        advantages_B: [B] advantages; not read for a row without any sampled token.
        mask_BT: [B, T] bool.
        epsilon_low, epsilon_high: half widths of the clip range.
        token_weights_BT: [B, T], at least 0, taken without gradient; None = 1.

    Raises:
        ValueError: shapes do not fit, a dtype is wrong, or a clip bound is out of range.

    Source: Ahmadian et al. 2024, arXiv 2402.14740; clipped form as in TRL's `RLOOTrainer`.
    """
    caller = "sequence_ppo_loss"
    require_tensors(caller, "BT", mask_BT, logprobs_BT=logprobs_BT, old_logprobs_BT=old_logprobs_BT)
    require_one_per_row(caller, mask_BT, advantages_B=advantages_B)
    log_ratio_BT = masked_log_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    if token_weights_BT is not None:
        require_tensors(caller, "BT", mask_BT, token_weights_BT=token_weights_BT)
        log_ratio_BT = log_ratio_BT * token_weights_BT.detach()
    advantages_B = advantages_B.where(mask_BT.any(-1), 0.0)
    return SequenceLoss(*clipped_surrogate(log_ratio_BT.sum(-1), advantages_B, epsilon_low, epsilon_high))
