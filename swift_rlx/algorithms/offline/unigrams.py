"""How far the words of a text are from those of a data set: Jensen-Shannon divergence of token frequencies.

In bits, so that it lies between 0 (the same distribution) and 1 (no token in common). Its square root is a distance.

The divergence of a small sample from the distribution that it was drawn from is far from 0: of 200 tokens from a Zipf
law over 5,000 types it is 0.46 bits, of 1,000 tokens 0.30, of 5,000 tokens 0.15. So a fixed threshold suits pooled
texts of at least 5,000 tokens; for single completions use `LengthThresholds`, calibrated on the data itself.

Source: Lin 1991, "Divergence measures based on the Shannon entropy", equation 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def token_counts(token_ids_N: Tensor, vocabulary: int) -> Tensor:
    """[V] float64: how often each token id occurs."""
    return torch.bincount(token_ids_N.cpu().long(), minlength=vocabulary).double()


def js_divergence(first_V: Tensor, second_V: Tensor) -> float:
    """Of two vectors of counts or probabilities, in bits.

    Raises:
        ValueError: lengths differ, a count is negative, or one of them is empty.
    """
    p, q = _distribution(first_V), _distribution(second_V)
    if p.shape != q.shape:
        raise ValueError(f"js_divergence takes counts over one vocabulary, got {len(p)} and {len(q)} entries")
    mixture = (p + q) / 2
    return max(0.0, 0.5 * (_relative_entropy(p, mixture) + _relative_entropy(q, mixture)))


def js_distance(first_V: Tensor, second_V: Tensor) -> float:
    """Square root of the divergence: what `scipy.spatial.distance.jensenshannon(p, q, base=2)` returns."""
    return math.sqrt(js_divergence(first_V, second_V))


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceTokens:
    """Token frequencies of a data set; `distribution_V` sums to 1."""

    distribution_V: Tensor

    @classmethod
    def of(cls, counts_V: Tensor) -> ReferenceTokens:
        """From counts. Raises ValueError for none."""
        return cls(_distribution(counts_V))

    def divergence(self, token_ids_N: Tensor) -> float:
        """Of one completion, in bits; its own tokens are all that is looked at. 1 for an empty one."""
        if not len(token_ids_N):
            return 1.0
        ids, counts = torch.unique(token_ids_N.cpu().long(), return_counts=True)
        p, q = counts.double() / counts.sum(), self.distribution_V[ids]
        mixture = (p + q) / 2
        elsewhere = 1.0 - q.sum().item()  # there the mixture is q / 2, one bit away
        return max(0.0, 0.5 * (_relative_entropy(p, mixture) + _relative_entropy(q, mixture) + elsewhere))


@dataclass(frozen=True, slots=True)
class LengthThresholds:
    """Largest divergence of a completion by its length: bucket k holds 2^k to 2^(k+1) - 1 tokens."""

    by_bucket: tuple[tuple[int, float], ...]

    @classmethod
    def calibrate(
        cls, reference: ReferenceTokens, completions: Sequence[Tensor], quantile: float = 0.95
    ) -> LengthThresholds:
        """So that this share of the data's own completions of each bucket passes. Raises ValueError without any."""
        found: dict[int, list[float]] = {}
        for token_ids in completions:
            if len(token_ids):
                found.setdefault(_bucket(len(token_ids)), []).append(reference.divergence(token_ids))
        if not found:
            raise ValueError(
                "LengthThresholds.calibrate takes at least one completion with a token, got none"
            )
        return cls(tuple((bucket, _quantile(values, quantile)) for bucket, values in sorted(found.items())))

    def of(self, num_tokens: int) -> float:
        """For a completion of this length; where the data has none, that of the nearest bucket, the shorter first."""
        bucket = _bucket(max(num_tokens, 1))
        return min(self.by_bucket, key=lambda one: (abs(one[0] - bucket), one[0]))[1]


def _bucket(num_tokens: int) -> int:
    return num_tokens.bit_length() - 1


def _quantile(values: list[float], share: float) -> float:
    """Smallest of the values that at least this share of them do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def _distribution(counts_V: Tensor) -> Tensor:
    counts = counts_V.detach().to("cpu", torch.float64)
    if not (counts >= 0).all() or not 0 < counts.sum() < torch.inf:
        raise ValueError("token counts must be at least 0 and finite, and one of them above 0")
    return counts / counts.sum()


def _relative_entropy(p: Tensor, mixture: Tensor) -> float:
    occurs = p > 0
    return float((p[occurs] * (p[occurs] / mixture[occurs]).log2()).sum())
