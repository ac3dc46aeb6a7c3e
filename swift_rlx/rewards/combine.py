"""Several reward sources into one reward per trajectory."""

from typing import NamedTuple

import torch

from swift_rlx.errors import ConfigError, RewardError


class Combined(NamedTuple):
    """rewards_B: weighted rewards, 0 where invalid, the dtype of the input. valid_B: bool, False =
    unscored."""

    rewards_B: torch.Tensor
    valid_B: torch.Tensor


def combine_rewards(rewards_BF: torch.Tensor, weights_F: torch.Tensor) -> Combined:
    """The weighted sum over F sources, where a missing source (NaN) leaves its weight to the others.

        R_b = sum_f w_f r_bf / sum_f |w_f|   over the sources that scored row b,   times   sum_f |w_f| over
        all

    so that a row with a missing source stays on the scale of its siblings instead of losing that source's
    share; with all sources there it is the plain weighted sum. A row is invalid where no source of non-zero
    weight scored it.

    rewards_BF: [B, F], NaN = unscored. weights_F: [F], finite, any sign. Computed in float64.

    Raises ConfigError where the shapes do not fit or a weight is not finite, RewardError for an infinite
    reward.
    """
    if rewards_BF.ndim != 2 or weights_F.shape != rewards_BF.shape[1:]:
        raise ConfigError(
            f"combine_rewards got rewards of shape {tuple(rewards_BF.shape)} and weights of shape "
            f"{tuple(weights_F.shape)}: they are [B, F] and [F]"
        )
    if not torch.isfinite(weights_F).all():
        raise ConfigError(f"a reward weight is not finite: {weights_F.tolist()}")
    if torch.isinf(rewards_BF).any():
        row, source = torch.isinf(rewards_BF).nonzero()[0].tolist()
        raise RewardError(
            f"reward source {source} gave {rewards_BF[row, source].item()} for row {row}: it must be finite"
        )
    weights = weights_F.to(rewards_BF.device, torch.float64)
    scored = ~torch.isnan(rewards_BF)
    weighted = torch.where(scored, rewards_BF.double(), 0.0) @ weights
    available = scored.double() @ weights.abs()
    valid = available > 0
    # Dividing by 1 where everything is missing keeps NaN out of the discarded branch.
    scale = weights.abs().sum() / torch.where(valid, available, 1.0)
    rewards = torch.where(valid, weighted * scale, 0.0)
    return Combined(rewards.to(rewards_BF.dtype), valid)
