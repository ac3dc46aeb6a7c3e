"""Per-token facts of the rollout beside the tokens as ms-swift encoded them for training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from swift_rlx.trainers.batch import split_rows, stack_rows
from swift_rlx.trainers.rollout_rows import Row


@dataclass(frozen=True)
class AlignedRows:
    """Rows n of this rank, T padded completion tokens; 0 or False where `completion_mask` is False.

    `usable_n`: False for fillers and for rows whose log-probs are not one for each trained token.
    """

    behavior_nT: torch.Tensor
    staleness_nT: torch.Tensor
    fresh_nT: torch.Tensor
    usable_n: torch.Tensor
    masks: list[torch.Tensor]

    def of_micro_batch(self, index: int, device: torch.device) -> dict[str, torch.Tensor]:
        """The fields of an RLXBatch."""
        return {
            "behavior_logprobs": split_rows(self.behavior_nT, self.masks)[index].to(device),
            "staleness": split_rows(self.staleness_nT, self.masks)[index].to(device),
        }


def align(rows: Sequence[Row], masks: list[torch.Tensor]) -> AlignedRows:
    """Put log-probs, staleness and freshness of each sampled token where `masks` [B, T_i] say it is."""
    mask_nT = stack_rows(masks).bool().cpu()
    behavior = torch.zeros(mask_nT.shape)
    staleness = torch.zeros(mask_nT.shape, dtype=torch.int64)
    fresh = torch.zeros(mask_nT.shape, dtype=torch.bool)
    usable = torch.zeros(len(rows), dtype=torch.bool)
    for at, row in enumerate(rows):
        places = mask_nT[at].nonzero(as_tuple=True)[0]
        logprobs = np.frombuffer(row.logprobs, "<f4")
        if len(logprobs) != len(places):
            continue
        behavior[at, places] = torch.from_numpy(logprobs.copy())
        staleness[at, places] = torch.from_numpy(np.frombuffer(row.staleness, "<i4").astype(np.int64))
        fresh[at, places] = torch.from_numpy(np.frombuffer(row.fresh, bool).copy())
        usable[at] = not row.is_filler and bool(np.isfinite(logprobs).all())
    return AlignedRows(behavior, staleness, fresh, usable, masks)
