"""From a generation batch to the tensors of one micro-batch.

Letters: N completions of all ranks, n of this rank, B of one micro-batch, T padded completion tokens, M micro-batches
of this rank in the generation batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from swift.rl_core.data import GRPOBatch


@dataclass
class RLXBatch(GRPOBatch):
    """A micro-batch ready for the loss.

    `loss_mask` [B, T] is True where a token trains. `normalizer` is what the summed loss is divided by: the rows
    (RLOO) or tokens (REINFORCE++) in the loss of the optimizer step that this micro-batch belongs to, over all ranks.

    `behavior_logprobs` [B, T] float32 are those of the policy that sampled each token, as the engine reported them, 0
    where no token was sampled; None when the policy itself sampled the batch. `staleness` [B, T] integers: optimizer
    steps in the trainer's weights at pick-up minus those in the weights that made the token; None counts as 0.
    `is_stored`: the batch comes from a trajectory store.

    `rows` [B] are the numbers of its rows in the generation batch of all ranks, where an offline objective trains it;
    None elsewhere.
    """

    loss_mask: torch.Tensor | None = None
    normalizer: torch.Tensor | None = None
    behavior_logprobs: torch.Tensor | None = None
    staleness: torch.Tensor | None = None
    is_stored: bool = False
    rows: torch.Tensor | None = None

    @classmethod
    def of(
        cls, batch: GRPOBatch, advantages: torch.Tensor, loss_mask: torch.Tensor, normalizer: torch.Tensor
    ) -> "RLXBatch":
        kept = {f.name: getattr(batch, f.name) for f in fields(GRPOBatch)}
        return cls(**kept | {"advantages": advantages}, loss_mask=loss_mask, normalizer=normalizer)


@dataclass(frozen=True)
class Rollout:
    """A scored generation batch, before advantages.

    All tensors are on the CPU: the statistics are in float64, which not every accelerator has, and sums in a fixed
    order make a resumed run equal to the last bit. `gather` and `reduce_sum` take and give CPU tensors, too.

    `rewards_N`, `valid_N` and `group_ids_N` are of all ranks, `rows` says which are ours. The log-probs are masked
    by `mask_nT`; they are None where the algorithm does not need them.
    """

    rewards_N: torch.Tensor
    valid_N: torch.Tensor
    group_ids_N: torch.Tensor
    rows: slice
    mask_nT: torch.Tensor
    proximal_logprobs_nT: torch.Tensor | None
    ref_logprobs_nT: torch.Tensor | None
    gather: Callable[[torch.Tensor], torch.Tensor]
    reduce_sum: Callable[[torch.Tensor], torch.Tensor]
    is_training: bool


def stack_rows(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Micro-batches [B, T_i] of unequal widths as one [n, max T_i]; the right is padded with zeros (False)."""
    width = max(part.shape[1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in parts])


def split_rows(stacked: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inverse of `stack_rows`: `stacked` [n, T] cut to the shapes of `parts`."""
    pieces = stacked.split([part.shape[0] for part in parts])
    return [piece[:, : part.shape[1]] for piece, part in zip(pieces, parts, strict=True)]


def window_totals(counts_M: torch.Tensor, micro_batches_per_step: int) -> torch.Tensor:
    """For each micro-batch of a generation batch the sum of `counts_M` over its optimizer step, [M].

    A generation batch that is no longer than an optimizer step is summed whole: several of them then share the step,
    each with its own mean.
    """
    if counts_M.numel() <= micro_batches_per_step:
        return counts_M.sum().expand_as(counts_M)
    windows = counts_M.view(-1, micro_batches_per_step).sum(1)
    return windows.repeat_interleave(micro_batches_per_step)
