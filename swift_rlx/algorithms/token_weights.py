"""Importance weights of single tokens: a function of each token's own ratio.

They leave out that the prefix, too, was sampled by another policy, and are therefore biased to first order in the
drift; their variance does not grow with the length.
"""

import math

import torch
from torch import Tensor

from .importance_ratio import ImportanceWeights


def token_truncate(log_ratio_BT: Tensor, cap: float) -> ImportanceWeights:
    """min(ratio_t, cap).

    Args:
        log_ratio_BT: [B, T] from `behavior_log_ratio`.
        cap: at least 1.

    Source: truncated importance sampling, Ionides 2008; per token as in Yao et al. 2025 (TIS).
    """
    is_high = log_ratio_BT > math.log(cap)
    weights = log_ratio_BT.clamp(max=math.log(cap)).exp()
    return ImportanceWeights(weights, torch.zeros_like(is_high), is_high)


def token_mask(log_ratio_BT: Tensor, cap: float) -> ImportanceWeights:
    """ratio_t, or 0 where it is above cap. Arguments as `token_truncate`."""
    is_high = log_ratio_BT > math.log(cap)
    weights = log_ratio_BT.where(~is_high, 0.0).exp().where(~is_high, 0.0)
    return ImportanceWeights(weights, torch.zeros_like(is_high), is_high)


def two_sided_mask(log_ratio_BT: Tensor, low: float = 0.5, high: float = 5.0) -> ImportanceWeights:
    """ratio_t from low to high, 0 outside; 0 < low <= 1 <= high.

    Source: IcePop (Ling team 2025).
    """
    is_low, is_high = log_ratio_BT < math.log(low), log_ratio_BT > math.log(high)
    kept = ~(is_low | is_high)
    return ImportanceWeights(log_ratio_BT.where(kept, 0.0).exp().where(kept, 0.0), is_low, is_high)
