"""Which kind of server this is, and what it can do; asked once, and again when it may be another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np

from swift_rlx.backends.remote_answer import NoAnswer, decode
from swift_rlx.backends.remote_dialect import Ability, Dialect, Generation, ServerFacts, ServerKind
from swift_rlx.backends.remote_http import Call, HttpClient
from swift_rlx.backends.remote_sglang import SglangDialect
from swift_rlx.backends.remote_vllm import VllmDialect
from swift_rlx.errors import BackendRejected, BackendUnavailable, BackendUnfit
from swift_rlx.types import SamplingParams

WARM = 2.0
"""A temperature at which log-probs are told from those at 1, and a filter from none; the highest that vLLM takes."""
MIN_GAP = 0.1
"""Nats between two tokens, below which they tell nothing."""
MAX_KEPT = 1e-3
"""Nats that the log-prob of the only token that a filter leaves may be off 0."""

# What a server's raw log-probs are mended with.
MENDS: Mapping[ServerKind, Mapping[Ability, str]] = {
    ServerKind.VLLM: dict.fromkeys(
        (Ability.LOGPROBS, Ability.FILTERS), "start it with --logprobs-mode processed_logprobs"
    ),
    ServerKind.SGLANG: {
        Ability.LOGPROBS: "unset SGLANG_RETURN_ORIGINAL_LOGPROB in its environment",
        Ability.FILTERS: "SGLang gives them before filters: use --top_p 1, and neither --top_k nor --min_p, or vLLM",
    },
}


class Card(msgspec.Struct):
    """A model in a server's list; `parent`: of an adapter, the model that it is of."""

    id: str
    owned_by: str = ""
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[Card]


async def recognize(client: HttpClient) -> tuple[Dialect, Card]:
    """Which kind of server it is, and its model.

    Raises `BackendUnfit` for one that is up and is none of those that we know, or wants another key, and what
    `HttpClient` raises.
    """
    url = client.endpoint.url
    call = Call("GET", "/v1/models", max_bytes=16 << 20)
    reply = await client.ask(call)
    if reply.status in (401, 403, 404, 405) or 300 <= reply.status < 400:
        raise BackendUnfit(str(client.error(call, reply)))
    if not reply.is_success:
        raise client.error(call, reply)
    try:
        cards = decode(reply.body, _Cards).data
    except NoAnswer as error:
        raise BackendUnfit(
            f"{url} is no server of vLLM or SGLang: its /v1/models is no list ({error})"
        ) from None
    base = next((card for card in cards if card.parent is None), None)
    dialects: dict[str, Dialect] = {"vllm": VllmDialect(), "sglang": SglangDialect()}
    if base is None or (dialect := dialects.get(base.owned_by)) is None:
        owner = "nobody" if base is None else base.owned_by[:40] or "nobody"
        raise BackendUnfit(
            f"{url} is no server of vLLM or SGLang: its model is owned by {owner!r}; give the address of one, not of a"
            " gateway before it"
        )
    return dialect, base


async def identify(
    client: HttpClient, probe_ids: tuple[int, ...], *, unpauses: bool = True
) -> tuple[Dialect, ServerFacts]:
    """How the server is to be asked, and what it can do. `unpauses`: one that an ended run left paused is resumed.

    Raises as `recognize`.
    """
    dialect, base = await recognize(client)
    try:
        facts = await dialect.facts(client, base.id, base.root or base.id, base.max_model_len)
        if unpauses:
            await dialect.unpause(client)
        if Ability.TOKENS not in facts.lacks:
            lacks = await logprob_faults(client, dialect, probe_ids)
            facts = replace(facts, lacks={**facts.lacks, **lacks})
    except NoAnswer as error:
        url = client.endpoint.url
        raise BackendUnavailable(f"{url} answers otherwise than {dialect.kind.value} does: {error}") from None
    return dialect, facts


async def logprob_faults(
    client: HttpClient, dialect: Dialect, probe_ids: tuple[int, ...]
) -> dict[Ability, str]:
    """Whether log-probs are those of the distribution that a token was drawn from: what is to be changed, if not.

    At a temperature T two tokens lie 1 / T as far apart as at 1. Of the only token that `top_k` 1 leaves it is 0.
    """
    mends, found = MENDS[dialect.kind], {}

    async def tops(length: int, temperature: float = 1.0, top_k: int = 0) -> Mapping[int, float]:
        sampling = SamplingParams(max_tokens=1, temperature=temperature, top_k=top_k)
        one = Generation("", np.array(probe_ids[:length], np.int32), sampling)
        try:
            return dialect.tops(await client.body_of(dialect.top_logprobs(one)))
        except BackendRejected as error:
            raise BackendUnfit(f"log-probs cannot be asked for: {error}") from None

    for length in (len(probe_ids), max(len(probe_ids) // 2, 1), 1):
        plain, warm = await tops(length), await tops(length, WARM)
        shared = sorted(plain.keys() & warm.keys(), key=plain.__getitem__)
        gap = plain[shared[-1]] - plain[shared[0]] if shared else 0.0
        if gap >= MIN_GAP:
            break
    else:
        return {
            Ability.LOGPROBS: "its model finds all tokens equally likely, so nothing tells what they mean"
        }
    seen = warm[shared[-1]] - warm[shared[0]]
    if abs(seen - gap / WARM) > abs(seen - gap):
        found[Ability.LOGPROBS] = mends[Ability.LOGPROBS]
    if abs(max((await tops(length, WARM, top_k=1)).values())) > MAX_KEPT:
        found[Ability.FILTERS] = mends[Ability.FILTERS]
    return found
