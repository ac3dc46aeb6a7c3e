"""The importance weights of off-policy samples by the name of their rule."""

import math

import torch
from torch import Tensor

from .importance_ratio import ImportanceWeights, behavior_log_ratio
from .product_weights import prefix_product, sequence_product
from .token_weights import token_mask, token_truncate, two_sided_mask

CORRECTIONS = ("none", "token_truncate", "token_mask", "two_sided_mask", "sequence_product", "prefix_product")


def importance_weights(
    mode: str,
    proximal_BT: Tensor,
    behavior_BT: Tensor,
    mask_BT: Tensor,
    cap: float = 2.0,
    bounds: tuple[float, float] = (0.5, 5.0),
) -> ImportanceWeights:
    """Weights of samples of the behavior policy for the proximal one: decoupled PPO multiplies its loss by them.

    | mode | weight | shape |
    |---|---|---|
    | none | 1 | [B] |
    | token_truncate | min(ratio_t, cap) | [B, T] |
    | token_mask | ratio_t, 0 above cap | [B, T] |
    | two_sided_mask | ratio_t, 0 outside bounds | [B, T] |
    | sequence_product | min(product of all ratios, cap) | [B] |
    | prefix_product | min(product of the ratios up to t, cap) | [B, T] |

    with ratio_t = exp(proximal_t - behavior_t). All is done on logarithms, so that ratios of any size give finite
    weights. Equal policies give exactly 1. What is weighted 0 stays in the denominator of the loss.

    Args:
        mode: a name of `CORRECTIONS`.
        proximal_BT: [B, T] log-probs under the trainer's weights at the pick-up of the batch.
        behavior_BT: [B, T] log-probs under the policy that sampled.
        mask_BT: [B, T] bool: every token that was sampled, also one that does not train, since it is part of a
            product.
        cap: upper bound, finite and at least 1.
        bounds: of two_sided_mask, low in (0, 1] and high at least 1.

    Raises:
        ValueError: unknown mode, a bound out of range, shapes that differ, or a wrong dtype.

    Source: Hilton et al. 2021, arXiv 2110.00641 (batch size-invariant, decoupled PPO); Fu et al. 2025 (AReaL).
    """
    low, high = bounds
    if not (1.0 <= cap < math.inf and 0.0 < low <= 1.0 <= high < math.inf):
        raise ValueError(
            "importance_weights takes a cap of at least 1 and bounds around 1, all finite and positive, got cap"
            f" {cap} and bounds {bounds}"
        )
    log_ratio_BT = behavior_log_ratio(proximal_BT, behavior_BT, mask_BT)
    if mode == "none":
        ones_B = torch.ones_like(log_ratio_BT[:, 0])
        return ImportanceWeights(ones_B, ones_B < 1, ones_B < 1)
    if mode == "token_truncate":
        return token_truncate(log_ratio_BT, cap)
    if mode == "token_mask":
        return token_mask(log_ratio_BT, cap)
    if mode == "two_sided_mask":
        return two_sided_mask(log_ratio_BT, low, high)
    if mode == "sequence_product":
        return sequence_product(log_ratio_BT, cap)
    if mode == "prefix_product":
        return prefix_product(log_ratio_BT, cap)
    raise ValueError(f"importance_weights takes one of {', '.join(CORRECTIONS)} as mode, got {mode!r}")
