"""The probe: what the policy thinks of a fixed text, to be compared with what a worker thinks of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from swift_rlx.backends.weights import Probe
from swift_rlx.types import IntArray

TEXT = "Q: What is 17 + 25? Answer in one word.\nA: 42, that is forty-two.\ndef f(x): return x\n"
TEXT_TOKENS, SPREAD_TOKENS = 32, 16

# Five times what the kernels of one type were seen to differ by at any token of this text, SmolLM2-135M on a CPU:
# 0.20 nats in bfloat16, 0.026 in float16 (eager, fused and cached attention, autocast, against float32 arithmetic on
# the same weights). In float32 it was 2.5e-5, but larger models and other chips add more terms. A change of weights
# that moves less than the arithmetic's own noise cannot be seen; a missing or stale layer moves it by many nats.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.15, torch.bfloat16: 1.0}


def probe_tokens(vocabulary: int, tokenizer: Any = None) -> IntArray:
    """The same tokens for the same vocabulary: some text, then ids from all over it, 48 in all.

    Special and added tokens are left out: some stand for an image, and an engine refuses them without one.
    """
    text: list[int] = []
    special: set[int] = set()
    if tokenizer is not None:
        vocabulary = min(vocabulary, len(tokenizer))  # a matrix may be padded beyond the last token
        special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        text = tokenizer.encode(TEXT, add_special_tokens=False)[:TEXT_TOKENS]
    usable = [token for token in range(vocabulary) if token not in special]
    places = np.linspace(0, len(usable) - 1, TEXT_TOKENS + SPREAD_TOKENS - len(text)).round().astype(int)
    return np.array([*text, *(usable[place] for place in places)], dtype=np.int32)


def probe_logprobs(model: nn.Module, token_ids: IntArray) -> torch.Tensor:
    """Log-probability [T - 1] of each token but the first, float32, with dropout off; a forward pass on all ranks."""
    device = next(parameter.device for parameter in model.parameters())
    ids_1T = torch.as_tensor(token_ids, dtype=torch.long, device=device)[None]
    with evaluating(model), torch.no_grad():
        logits_1TV = model(input_ids=ids_1T, attention_mask=torch.ones_like(ids_1T), use_cache=False).logits
    logprobs_TV = torch.log_softmax(logits_1TV[0, :-1].float(), dim=-1)
    return logprobs_TV.gather(1, ids_1T[0, 1:, None])[:, 0].cpu()


def make_probe(model: nn.Module, token_ids: IntArray, tolerance: float) -> Probe:
    """See `probe_logprobs`."""
    return Probe(token_ids, probe_logprobs(model, token_ids).numpy(), tolerance)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off within the context, and every module as it was afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
