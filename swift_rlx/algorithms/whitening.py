"""Global normalization of REINFORCE++: moments over the whole generation batch, on all ranks."""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ._checks import require_tensors

MIN_VARIANCE = 1e-8
"""Below this the batch has no spread: whitening gives zeros instead of amplified rounding noise."""

Weighting = Literal["token", "sequence"]
ReduceSum = Callable[[Tensor], Tensor]


class Moments(NamedTuple):
    """Mean and variance of a batch over all ranks; `weight` is the number of tokens (or sequences)."""

    weight: float
    mean: float
    variance: float


def masked_whiten(
    values_BT: Tensor,
    mask_BT: Tensor,
    *,
    reduce_sum: ReduceSum | None = None,
    weighting: Weighting = "token",
    unbiased: bool = False,
) -> Tensor:
    """(value - mean) / std over all sampled tokens of all ranks, 0 where the mask is False.

    Call it once per generation batch, before the split. Arguments as `masked_moments`, result as `whiten`.

    Source: Hu et al. 2025, arXiv 2501.03262 (global advantage normalization).
    """
    moments = masked_moments(
        values_BT, mask_BT, reduce_sum=reduce_sum, weighting=weighting, unbiased=unbiased
    )
    return whiten(values_BT, mask_BT, moments)


def masked_moments(
    values_BT: Tensor,
    mask_BT: Tensor,
    *,
    reduce_sum: ReduceSum | None = None,
    weighting: Weighting = "token",
    unbiased: bool = False,
) -> Moments:
    """Mean and variance over the sampled tokens of all ranks, in two passes of float64.

    Args:
        values_BT: [B, T] this rank's values; not read where the mask is False.
        mask_BT: [B, T] bool; all False on a rank without valid rows.
        reduce_sum: sums a float64 vector over the ranks, None = one process. Called exactly twice, with 2
            and then 1 numbers, also by a rank whose mask is empty.
        weighting: "token": every sampled token weighs 1. "sequence": it weighs 1 / (sampled tokens of its
            row), so that every non-empty row weighs 1 and the mean is the mean of the rows' token means.
        unbiased: divide the squares by tokens - 1 instead of tokens; for weighting "token" only.

    Returns:
        The same `Moments` on every rank; (0, 0, 0) when no rank has a sampled token.

    Raises:
        ValueError: shapes differ, a dtype is wrong, `weighting` is unknown or does not allow `unbiased`, or a
            value under the mask is NaN or infinite on any rank (then raised on all ranks).
    """
    require_tensors("masked_moments", "BT", mask_BT, values_BT=values_BT)
    weights_BT = _token_weights(mask_BT, weighting, unbiased)
    values = values_BT.detach().double().where(mask_BT, 0.0)
    reduce = reduce_sum if reduce_sum is not None else (lambda vector: vector)
    weight, total = reduce(torch.stack([weights_BT.sum(), (weights_BT * values).sum()])).tolist()
    mean = total / weight if weight > 0 else 0.0
    (squares,) = reduce((weights_BT * (values - mean).square()).sum()[None]).tolist()
    degrees = weight - 1 if unbiased else weight
    moments = Moments(weight, mean, squares / degrees if degrees > 0 else 0.0)
    if not math.isfinite(mean + moments.variance):
        raise ValueError(
            f"masked_moments got NaN or infinity at a position with mask True, over all ranks {moments}; "
            "mask rows that have no finite reward or log-probs"
        )
    return moments


def _token_weights(mask_BT: Tensor, weighting: str, unbiased: bool) -> Tensor:
    weights_BT = mask_BT.double()
    if weighting == "token":
        return weights_BT
    if weighting != "sequence":
        raise ValueError(f"masked_moments takes 'token' or 'sequence' as weighting, got {weighting!r}")
    if unbiased:
        raise ValueError(
            "masked_moments takes unbiased=True with weighting 'token' only (tokens - 1 is no "
            "correction for weighted tokens), got 'sequence'; use unbiased=False"
        )
    return weights_BT / weights_BT.sum(-1, keepdim=True).clamp(min=1)


def whiten(values_BT: Tensor, mask_BT: Tensor, moments: Moments) -> Tensor:
    """(value - mean) / sqrt(variance), 0 where the mask is False; all 0 when the variance is below 1e-8.

    Returns:
        [B, T] in the dtype of `values_BT` (computed in float64), without gradient.

    Raises:
        ValueError: shapes differ, or a dtype is wrong.
    """
    require_tensors("whiten", "BT", mask_BT, values_BT=values_BT)
    if moments.variance < MIN_VARIANCE:
        return torch.zeros_like(values_BT)
    centered_BT = values_BT.detach().double() - moments.mean
    return (centered_BT / math.sqrt(moments.variance)).where(mask_BT, 0.0).to(values_BT.dtype)
