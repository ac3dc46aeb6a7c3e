"""A small generation batch of stored completions, and micro-batches of it as a model would see them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from swift_rlx.algorithms.offline import MicroBatch, StoredRows

F64 = torch.float64
V, T = 4, 5


@dataclass
class StoredBatch:
    """Three prompts with three completions each and one with a single one; row 4 is invalid. Garbage where masked."""

    seed: int = 0
    progress: float = 0.5

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(self.seed)
        lengths = torch.tensor([5, 3, 1, 4, 2, 5, 2, 3, 4, 3])
        self.mask = torch.arange(T) < lengths[:, None]
        self.mask[0, 2] = False  # tool output in the middle
        size = len(lengths)
        self.ids = torch.randint(V, (size, T), generator=draw)
        self.logits = torch.randn(size, T, V, generator=draw, dtype=F64)
        self.reference = torch.randn(size, T, V, generator=draw, dtype=F64)
        self.target = torch.randn(size, T, V, generator=draw, dtype=F64)
        self.drift = 0.3 * torch.randn(size, T, generator=draw, dtype=F64)
        self.rows = StoredRows(
            group_ids_B=torch.tensor([8, 8, 8, 2, 2, 2, 5, 5, 5, 1]),
            tokens_B=self.mask.sum(1),
            valid_B=torch.arange(size) != 4,
            rewards_B=torch.randn(size, generator=draw, dtype=F64),
            scores_BF=torch.randn(size, 3, generator=draw, dtype=F64),
            progress=self.progress,
        )

    def part(self, logits: Tensor, rows: Tensor | None = None) -> MicroBatch:
        """These rows of the batch (None = all); `logits` [10, T, V] are of the current policy."""
        rows = torch.arange(len(self.ids)) if rows is None else rows
        masked = ~self.mask[rows]
        chosen = logits[rows].masked_fill(masked[..., None], torch.nan)
        logprobs = chosen.log_softmax(-1).gather(-1, self.ids[rows][..., None])[..., 0]
        behavior = logprobs.detach() + self.drift[rows]
        return MicroBatch(
            rows_b=rows,
            mask_bT=self.mask[rows],
            logprobs_bT=logprobs,
            behavior_logprobs_bT=behavior,
            token_ids_bT=self.ids[rows],
            logits_bTV=chosen,
            reference_logits_bTV=self.reference[rows].masked_fill(masked[..., None], torch.inf),
            target_logits_bTV=self.target[rows].masked_fill(masked[..., None], torch.nan),
        )
