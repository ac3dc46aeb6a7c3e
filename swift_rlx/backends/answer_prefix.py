"""Going on behind the tokens of an earlier attempt: vLLM and servers get them as a part of the prompt.

A repetition penalty sees the tokens of the prompt as it sees those of the answer (vLLM's does), and what is left of
`max_tokens` is known. Two things are different. Stop strings are looked for in what an engine makes itself, so none may
have begun before. And it draws from the seed as if the answer began: the numbers that chose the first tokens would
choose again, and not independently of them; so what follows gets a seed of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from swift_rlx.backends.base import GenerationRequest
from swift_rlx.backends.progress import beginning
from swift_rlx.types import Chunk, IntArray

SEED_STEP = 104_729
HALF_A_CHARACTER = "\ufffd"


def usable_prefix(request: GenerationRequest, decode: Callable[[list[int]], str]) -> Chunk | None:
    """The prefix without the last tokens in which a stop string may have begun; None where nothing is left."""
    prefix, stops = request.prefix, request.sampling.stop
    if prefix is None or not prefix.num_tokens:
        return None
    tokens = prefix.token_ids.tolist()
    tail = max((len(stop.encode()) for stop in stops), default=0) + 4  # a token has a byte at least
    while tokens and _may_begin(stops, decode(tokens[-tail:])):
        tokens.pop()
    return beginning(prefix, len(tokens)) if tokens else None


def _may_begin(stops: Sequence[str], text: str) -> bool:
    text = text.rstrip(HALF_A_CHARACTER)
    return any(text.endswith(stop[:count]) for stop in stops for count in range(1, len(stop)))


def text_before(request: GenerationRequest, prefix: Chunk | None) -> IntArray:
    """What the engine is given: the prompt, and the prefix behind it."""
    ids = request.prompt.token_ids
    return ids if prefix is None else np.concatenate([ids, prefix.token_ids])


def seed_behind(seed: int, num_tokens: int) -> int:
    """For what follows the first tokens of an answer."""
    return (seed + SEED_STEP * num_tokens) % 2**31
