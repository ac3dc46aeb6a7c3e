"""RLOO's advantage: the reward minus the mean reward of the other completions of the same prompt."""

from torch import Tensor

from .group_sums import group_sums


def loo_advantages(rewards_B: Tensor, group_ids_B: Tensor, valid_B: Tensor) -> Tensor:
    """Leave-one-out advantages, over the whole generation batch.

    With n valid rows in a group, A_i = R_i - (1/(n-1)) sum_{j != i} R_j = n/(n-1) (R_i - mean R).
    The advantages of a group sum to 0. Invalid rows enter nobody's baseline and get 0. A group with fewer
    than two valid rows has no baseline and gets 0. Equal rewards give exactly 0. There is no division by a
    standard deviation.

    Args:
        rewards_B: [B] rewards, the KL term already subtracted; gathered over all ranks.
        group_ids_B: [B] integers; equal id = same prompt. Groups may differ in size and lie in any order.
        valid_B: [B] bool; False = unscored row, its reward is not read.

    Returns:
        [B] advantages in the dtype and on the device of `rewards_B` (computed in float64), without gradient.

    Raises:
        ValueError: shapes differ, a dtype is wrong, or a valid row's reward is NaN or infinite.

    Source: Ahmadian et al. 2024, arXiv 2402.14740 (REINFORCE Leave-One-Out); Kool et al. 2019.
    """
    count_B, mean_B = group_sums(rewards_B, group_ids_B, valid_B, caller="loo_advantages")
    centered_B = rewards_B.detach().double() - mean_B
    advantages_B = centered_B * count_B / (count_B - 1).clamp(min=1)
    # The only valid row of a group equals its mean exactly, so it gets 0 without a special case.
    return advantages_B.where(valid_B, 0.0).to(rewards_B.dtype)
