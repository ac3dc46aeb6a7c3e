"""Size and mean of prompt groups, the common part of the leave-one-out and the group-mean baseline."""

from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import require_tensors


class GroupSums(NamedTuple):
    """For each row, about the valid rows of its group; [B] float64 on the device of the rewards."""

    count_B: Tensor
    """Number of valid rows."""
    mean_B: Tensor
    """Mean of their rewards, 0 for a group without valid rows; exact when the rewards are equal."""


def group_sums(
    rewards_B: Tensor, group_ids_B: Tensor, valid_B: Tensor, *, caller: str = "group_sums"
) -> GroupSums:
    """Count and average rewards per group, over valid rows only.

    The mean is taken as smallest + mean(reward - smallest): equal rewards, whatever their value, then equal
    their mean to the last bit and get an advantage of exactly 0. The sums are made on the CPU because
    `index_add_` on an accelerator adds in an arbitrary order, and a resumed run would differ in the last bit.

    Args:
        rewards_B: [B] rewards; not read where `valid_B` is False.
        group_ids_B: [B] integers, any values in any order; equal id = same prompt.
        valid_B: [B] bool.
        caller: name for the error message.

    Raises:
        ValueError: shapes differ, a dtype is wrong, or a valid row's reward is NaN or infinite.
    """
    require_tensors(caller, "B", valid_B, rewards_B=rewards_B)
    _require_ids(caller, rewards_B, group_ids_B)
    valid = valid_B.cpu()
    rewards = rewards_B.detach().to("cpu", torch.float64).where(valid, 0.0)
    _require_finite(caller, rewards)

    ids, group_B = torch.unique(group_ids_B.cpu(), return_inverse=True)
    count = rewards.new_zeros(len(ids)).index_add_(0, group_B, valid.double())
    smallest = rewards.new_full((len(ids),), torch.inf)
    smallest.scatter_reduce_(0, group_B, rewards.where(valid, torch.inf), "amin")
    offset_B = (rewards - smallest[group_B]).where(valid, 0.0)
    offset_sum = rewards.new_zeros(len(ids)).index_add_(0, group_B, offset_B)
    mean = (smallest + offset_sum / count).where(count > 0, 0.0)
    return GroupSums(count[group_B].to(rewards_B.device), mean[group_B].to(rewards_B.device))


def _require_ids(caller: str, rewards_B: Tensor, group_ids_B: Tensor) -> None:
    if group_ids_B.shape != rewards_B.shape:
        shapes = f"group_ids_B {tuple(group_ids_B.shape)}, rewards_B {tuple(rewards_B.shape)}"
        raise ValueError(f"{caller} takes one group id per row, got {shapes}")
    if group_ids_B.is_floating_point() or group_ids_B.dtype == torch.bool:
        raise ValueError(f"{caller} takes integers as group_ids_B, got {group_ids_B.dtype}")


def _require_finite(caller: str, rewards: Tensor) -> None:
    bad = (~rewards.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise ValueError(
            f"{caller} got the reward {rewards[bad[0]].item()} in row {bad[0]}, which is marked valid; "
            "a valid reward is finite, an unscored row has valid_B False"
        )
