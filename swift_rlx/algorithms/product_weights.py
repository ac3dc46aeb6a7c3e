"""Importance weights that are products of token ratios: of the whole completion, or of each token's prefix.

The untruncated product over the completion is unbiased, also when the tokens come from several policies. It is of use
for short completions and small drift only: its effective sample size falls exponentially with the length.
"""

import math

import torch
from torch import Tensor

from .importance_ratio import ImportanceWeights


def sequence_product(log_ratio_BT: Tensor, cap: float) -> ImportanceWeights:
    """[B] min(product over the tokens of ratio_t, cap).

    Args:
        log_ratio_BT: [B, T] from `behavior_log_ratio`; masked positions are 0 and count as ratio 1.
        cap: at least 1; inf does not truncate, and the weight may then overflow.
    """
    return _truncated(log_ratio_BT.sum(-1), cap)


def prefix_product(log_ratio_BT: Tensor, cap: float) -> ImportanceWeights:
    """[B, T] min(product of the ratios of the tokens up to and including t, cap). Arguments as above."""
    return _truncated(log_ratio_BT.cumsum(-1), cap)


def _truncated(log_products: Tensor, cap: float) -> ImportanceWeights:
    is_high = log_products > math.log(cap)
    weights = log_products.clamp(max=math.log(cap)).exp()
    return ImportanceWeights(weights, torch.zeros_like(is_high), is_high)
