"""The baseline of REINFORCE++-baseline: the mean reward of the group, the completion itself included."""

from torch import Tensor

from .group_sums import group_sums


def group_centered(rewards_B: Tensor, group_ids_B: Tensor, valid_B: Tensor) -> Tensor:
    """Rewards minus the mean of their group; REINFORCE++-baseline then whitens them over the whole batch.

    c_i = R_i - (1/n) sum_j R_j over the n valid rows of the group. Its expected gradient is (1 - 1/n) times
    the leave-one-out one, the same direction for groups of one size. Invalid rows get 0; a single valid row
    gets 0.

    Args:
        rewards_B: [B] rewards, gathered over all ranks.
        group_ids_B: [B] integers; equal id = same prompt. Groups may differ in size and lie in any order.
        valid_B: [B] bool; False = unscored row, its reward is not read.

    Returns:
        [B] centered rewards in the dtype and on the device of `rewards_B` (computed in float64), without
        gradient.

    Raises:
        ValueError: shapes differ, a dtype is wrong, or a valid row's reward is NaN or infinite.

    Source: Hu et al. 2025, arXiv 2501.03262 (REINFORCE++-baseline).
    """
    _, mean_B = group_sums(rewards_B, group_ids_B, valid_B, caller="group_centered")
    return (rewards_B.detach().double() - mean_B).where(valid_B, 0.0).to(rewards_B.dtype)
