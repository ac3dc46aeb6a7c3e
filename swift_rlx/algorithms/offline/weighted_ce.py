"""The loss that softmax-CE and AWAC share: cross-entropy with a fixed, non-negative weight per completion, and a KL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from .objective import MicroBatch, ObjectiveLoss, StoredRows, required, row_sums, zero_of
from .vocabulary_kl import vocabulary_kl


@dataclass(frozen=True, slots=True, eq=False)
class WeightedCE:
    """-sum_i weight_i log pi(y_i) + beta * mean over tokens of KL(policy || reference).

    The weights carry no gradient and whatever they are to be divided by is in them. log pi(y_i) is a token sum.
    """

    name: str
    weights_B: Tensor
    tokens: int
    """Of the whole generation batch, over which the KL is averaged."""
    beta: float
    metrics: Mapping[str, float]
    valid_B: Tensor | None = None
    """bool, the rows whose tokens enter the KL; None = all."""

    def loss(self, part: MicroBatch) -> ObjectiveLoss:
        """Of a micro-batch; its logits and those of the reference are used only if `beta` is above 0."""
        logprobs_b = row_sums(part.logprobs_bT, part.mask_bT)
        weights_b = self.weights_B[part.rows_b.cpu()].to(logprobs_b)
        cross_entropy = -(weights_b * logprobs_b).sum()
        metrics = {f"{self.name}/cross_entropy": cross_entropy.item()}
        if not self.beta or not self.tokens:
            return ObjectiveLoss(cross_entropy + zero_of(part), metrics)
        logits = required(part.logits_bTV, "logits", self.name)
        reference = required(part.reference_logits_bTV, "logits of the reference model", self.name)
        mask = part.mask_bT
        if self.valid_B is not None:
            mask = mask & self.valid_B.cpu()[part.rows_b.cpu(), None].to(mask.device)
        kl = vocabulary_kl(logits, reference, mask).sum() / self.tokens
        return ObjectiveLoss(cross_entropy + self.beta * kl, {**metrics, f"{self.name}/kl": kl.item()})


def per_token(weights_B: Tensor, rows: StoredRows) -> Tensor:
    """Weights for the mean log-prob of a completion instead of the sum: divided by its length."""
    return weights_B / rows.tokens_B.cpu().clamp(min=1)


def num_tokens(rows: StoredRows) -> int:
    """Tokens in the loss mask of the valid rows."""
    return int(rows.tokens_B.cpu()[rows.valid_B.cpu()].sum())
