"""KL(policy || reference) over the whole vocabulary at given positions: exact, whoever sampled the tokens.

Estimators on sampled tokens (k1, k3) are right for samples of the policy only; on stored data they can have the wrong
sign.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .._checks import compute_dtype


def vocabulary_kl(
    logits_BTV: Tensor, reference_logits_BTV: Tensor, mask_BT: Tensor, *, chunk_tokens: int = 1024
) -> Tensor:
    """[B, T] sum over the vocabulary of p (log p - log q), 0 where the mask is False; gradient to `logits_BTV` only.

    Log-softmaxes exist for `chunk_tokens` positions at a time and are computed again for the gradient.

    Args:
        logits_BTV: finite where the mask is True; not read elsewhere.
        reference_logits_BTV: same shape.
        mask_BT: [B, T] bool.

    Raises:
        ValueError: shapes differ, or the mask is not bool.
    """
    shapes = (tuple(logits_BTV.shape), tuple(reference_logits_BTV.shape), tuple(mask_BT.shape))
    if shapes[0] != shapes[1] or shapes[0][:-1] != shapes[2] or mask_BT.dtype != torch.bool:
        raise ValueError(
            "vocabulary_kl takes logits and reference logits [B, T, V] with a bool mask [B, T], got"
            f" {', '.join(map(str, shapes))} of {mask_BT.dtype}"
        )
    dtype = compute_dtype(logits_BTV)
    policy, reference = logits_BTV[mask_BT], reference_logits_BTV.detach()[mask_BT]
    chunks = [
        checkpoint(_kl, some.to(dtype), other.to(dtype), use_reentrant=False)
        for some, other in zip(
            torch.split(policy, chunk_tokens), torch.split(reference, chunk_tokens), strict=True
        )
    ]
    kl_BT = torch.zeros(mask_BT.shape, dtype=dtype, device=logits_BTV.device)
    return kl_BT.masked_scatter(mask_BT, torch.cat(chunks)) if len(policy) else kl_BT


def _kl(logits_NV: Tensor, reference_NV: Tensor) -> Tensor:
    logprobs = logits_NV.log_softmax(-1)
    return (logprobs.exp() * (logprobs - reference_NV.log_softmax(-1))).sum(-1)
