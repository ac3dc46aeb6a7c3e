"""Per-token facts of the rollout beside the tokens as ms-swift encoded them for training.

A row has to have as many tokens in the completion mask as the worker sampled; else nobody knows which log-prob belongs
to which token, and the row does not train.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from swift.utils import get_logger

from swift_rlx.errors import ConfigError
from swift_rlx.trainers.batch import split_rows, stack_rows
from swift_rlx.trainers.rollout_rows import Row

logger = get_logger()


@dataclass(frozen=True)
class AlignedRows:
    """Rows n of this rank, T padded completion tokens; 0 or False where `completion_mask` is False.

    `usable_n`: False for fillers and for rows whose log-probs are not one for each trained token. `lengths`: of the
    first of those, the tokens that were sampled and those that would train.
    """

    behavior_nT: torch.Tensor
    staleness_nT: torch.Tensor
    fresh_nT: torch.Tensor
    usable_n: torch.Tensor
    masks: list[torch.Tensor]
    lengths: tuple[int, int] | None = None

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
    lengths: tuple[int, int] | None = None
    for at, row in enumerate(rows):
        places = mask_nT[at].nonzero(as_tuple=True)[0]
        logprobs = np.frombuffer(row.logprobs, "<f4")
        if len(logprobs) != len(places):
            lengths = lengths or (len(logprobs), len(places))
            continue
        behavior[at, places] = torch.from_numpy(logprobs.copy())
        staleness[at, places] = torch.from_numpy(np.frombuffer(row.staleness, "<i4").astype(np.int64))
        fresh[at, places] = torch.from_numpy(np.frombuffer(row.fresh, bool).copy())
        usable[at] = not row.is_filler and bool(np.isfinite(logprobs).all())
    return AlignedRows(behavior, staleness, fresh, usable, masks, lengths)


class AlignmentWatch:
    """Speaks up about rows that do not align: once where some do, and with an error where none ever did."""

    def __init__(self) -> None:
        self._has_aligned = False
        self._has_warned = False

    def check(
        self, usable_N: torch.Tensor, is_filler_N: torch.Tensor, lengths: tuple[int, int] | None
    ) -> None:
        """Of a generation batch, all ranks. Raises ConfigError where no row of the first one aligns."""
        self._has_aligned = self._has_aligned or bool(usable_N.any())
        lost = int((~usable_N & ~is_filler_N).sum())
        if not lost:
            return
        shown = f", for example {lengths[0]} sampled tokens and {lengths[1]} in training" if lengths else ""
        what = f"{lost} of {len(usable_N)} answers are encoded for training otherwise than the worker made them{shown}"
        remedy = "raise --max_length if it cuts them, or use --async_rollout false"
        if not self._has_aligned:
            raise ConfigError(f"{what}, so that nothing can be trained; {remedy}")
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                f"{what}, and do not train; the metric rollout/rows_unusable goes on counting; {remedy}"
            )
