"""Log-probs of a text from vLLM's server, place by place: each from an answer of one token to what stands before it.

vLLM can score a text while it reads it (`prompt_logprobs`), but not beside answers where the server has room for LoRA
adapters: it looks up the adapter of each row of the text in a table that has one entry for each answer of the batch
(`LogitsProcessorWithLoRA` under `_get_prompt_logprobs_dict`, 0.32). The CPU build dies of that; a GPU's kernels have no
check of it. An answer of one token is a row like those of all other answers, whoever asked for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from swift_rlx.backends.remote_answer import NoAnswer, text_scores
from swift_rlx.backends.remote_dialect import Generation
from swift_rlx.backends.remote_http import HttpClient
from swift_rlx.backends.remote_vllm_answers import VllmAnswers
from swift_rlx.types import FloatArray, IntArray, SamplingParams

RAISE = 100.0
"""Nats by which a token is raised, to be among the likeliest; float32 has steps of 1e-5 there."""


async def scores_at(
    client: HttpClient, answers: VllmAnswers, token_ids: IntArray, places: IntArray, adapter: str | None
) -> FloatArray:
    """As `Dialect.scores`.

    A token that is not among the likeliest at its place is asked for again with its logit raised. That moves it against
    all others by as much, and no other against another, so one that is in both answers tells where it was.
    """

    async def tops(before: IntArray, raised: Mapping[int, float] | None = None) -> Mapping[int, float]:
        one = Generation("", before, SamplingParams(max_tokens=1), adapter)
        return answers.tops(await client.body_of(answers.top_logprobs(one, raised)))

    async def score(place: int) -> float:
        token, before = int(token_ids[place]), token_ids[:place]
        plain = await tops(before)
        if token in plain:
            return plain[token]
        lifted = await tops(before, {token: RAISE})
        shared = plain.keys() & lifted.keys()
        if token not in lifted or not shared:
            raise NoAnswer(f"it does not say how likely the token {token} is")
        other = max(shared, key=plain.__getitem__)
        return plain[other] + (lifted[token] - RAISE) - lifted[other]

    tasks = [asyncio.ensure_future(score(place)) for place in places.tolist()]
    try:
        return text_scores(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
