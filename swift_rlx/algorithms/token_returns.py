"""Token-level rewards and returns of REINFORCE++: KL on every token, the reward on the last one."""

import torch
from torch import Tensor

from ._checks import compute_dtype, require_one_per_row, require_tensors


def token_rewards(rewards_B: Tensor, kl_BT: Tensor, mask_BT: Tensor, beta: float) -> Tensor:
    """r_t = -beta * kl_t on every sampled token, plus R on the last sampled token of the row.

    The last sampled token is the last one with mask True, also when tool output or padding follows. A row
    without any sampled token gets nothing and its reward is not read: that is how an unscored row is passed.

    Args:
        rewards_B: [B] rewards of the completions.
        kl_BT: [B, T] k1 per token in nats; not read where the mask is False.
        mask_BT: [B, T] bool.
        beta: weight of the KL term.

    Returns:
        [B, T] rewards per token, 0 where the mask is False, without gradient.

    Raises:
        ValueError: shapes do not fit, or a dtype is wrong.

    Source: Hu et al. 2025, arXiv 2501.03262 (REINFORCE++, token-level KL).
    """
    require_tensors("token_rewards", "BT", mask_BT, kl_BT=kl_BT)
    require_one_per_row("token_rewards", mask_BT, rewards_B=rewards_B)
    dtype = torch.promote_types(compute_dtype(rewards_B), kl_BT.dtype)
    penalties_BT = (-beta * kl_BT.detach().to(dtype)).where(mask_BT, 0.0)
    sampled_from_here_BT = mask_BT.flip(-1).cumsum(-1).flip(-1)
    is_last_BT = mask_BT & (sampled_from_here_BT == 1)
    return penalties_BT + rewards_B.detach().to(dtype)[:, None].where(is_last_BT, 0.0)


def reverse_returns(rewards_BT: Tensor, mask_BT: Tensor, gamma: float) -> Tensor:
    """G_t = r_t + gamma * G_next, where next is the next sampled token: the return from token t on.

    Masked positions (tool output) carry the return through and are not counted as steps: they neither cut the
    credit of the tokens before them nor discount it.

    Args:
        rewards_BT: [B, T] rewards per token; not read where the mask is False.
        mask_BT: [B, T] bool.
        gamma: discount per sampled token, from 0 to 1.

    Returns:
        [B, T] returns in the dtype of `rewards_BT` (float64 inside), 0 where the mask is False, no gradient.

    Raises:
        ValueError: shapes differ, a dtype is wrong, or gamma is outside [0, 1].

    Source: Hu et al. 2025, arXiv 2501.03262; with gamma 1, G_t = R - beta * sum_{s >= t} kl_s.
    """
    require_tensors("reverse_returns", "BT", mask_BT, rewards_BT=rewards_BT)
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"reverse_returns takes gamma from 0 to 1, got {gamma}")
    # G_t = r_t + w_t G_{t+1} by doubling: log2(T) passes, where a loop over tokens takes T. Entering a pass,
    # returns_BT[t] covers the positions t .. t+span-1 and weights_BT[t] is the product of their w.
    returns_BT = rewards_BT.detach().double().where(mask_BT, 0.0)
    weights_BT = torch.ones_like(returns_BT).masked_fill(mask_BT, gamma)
    span = 1
    while span < returns_BT.shape[1]:
        later_BT = weights_BT[:, :-span] * returns_BT[:, span:]
        returns_BT = torch.cat([returns_BT[:, :-span] + later_BT, returns_BT[:, -span:]], 1)
        weights_BT = torch.cat([weights_BT[:, :-span] * weights_BT[:, span:], weights_BT[:, -span:]], 1)
        span *= 2
    return returns_BT.where(mask_BT, 0.0).to(rewards_BT.dtype)
