"""SGLang's server: `python -m sglang.launch_server`. Written from its documentation, and not run.

    answers    /generate with `input_ids`, `return_logprob` and `stream`; an event repeats what came before it, unless
               the server was started with --incremental-streaming-output
    adapters   /load_lora_adapter, a new name for each version; /update_weight_version, by which a server that was
               started again is told from the one that was given the adapter
    weights    /update_weights_from_disk with a `weight_version`, while no answer is in flight

It says of an answer which weights it ended with, not which made each token. So an answer may not live through new
weights: full weights wait for answers in flight, and an answer under an adapter keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from swift_rlx.backends.remote_answer import (
    NO_LOGPROB,
    Count,
    EventFault,
    NoAnswer,
    TokenId,
    WirePiece,
    decode,
    text_scores,
)
from swift_rlx.backends.remote_dialect import (
    ANSWER_BYTES,
    STREAM_TOKENS,
    TOKEN_BYTES,
    Ability,
    Generation,
    ServerFacts,
    ServerKind,
    Standing,
)
from swift_rlx.backends.remote_http import Call, HttpClient
from swift_rlx.backends.weights import WeightKind
from swift_rlx.types import FinishReason, FloatArray, IntArray, SamplingParams

BARRED = -1e9
"""Added to the logit of a token that is not to be sampled; JSON has no infinity."""
TOPS = 10
INFO_BYTES = 16 << 20


class _Pair(msgspec.Struct, array_like=True):
    """`[log-prob, token id, text]`; a first token has no log-prob."""

    logprob: float | None
    token_id: TokenId


class _Finish(msgspec.Struct):
    type: str


class _Meta(msgspec.Struct):
    finish_reason: _Finish | None = None
    completion_tokens: Count | None = None
    output_token_logprobs: list[_Pair] = []
    output_top_logprobs: list[list[_Pair] | None] = []
    input_token_logprobs: list[_Pair] = []
    weight_version: str | None = None


class _Generated(msgspec.Struct):
    meta_info: _Meta


class _Event(msgspec.Struct):
    meta_info: _Meta | None = None
    error: msgspec.Raw = msgspec.Raw(b"null")


class _ServerInfo(msgspec.Struct):
    version: str = "of unknown version"
    enable_lora: bool | None = None
    max_lora_rank: int | None = None


class _ModelInfo(msgspec.Struct):
    weight_version: str | None = None


def _reason(end: _Finish | None) -> FinishReason | None:
    if end is None:
        return None
    try:
        return FinishReason(end.type)
    except ValueError:
        raise NoAnswer(f"it ended an answer by {end.type[:40]!r}") from None


class SglangDialect:
    """A `Dialect`."""

    kind = ServerKind.SGLANG

    def generation(self, one: Generation) -> Call:
        """As `Dialect.generation`."""
        return self._asking(one, {"stream": True})

    def piece(self, data: bytes) -> WirePiece:
        """As `Dialect.piece`. Log-probs come in pairs with the ids as sampled, the last one included.

        Once it has begun to answer, all that SGLang has to say against a request is an event.
        """
        event = decode(data, _Event)
        if bytes(event.error) != b"null":
            raise EventFault(400, data)
        if (meta := event.meta_info) is None:
            raise NoAnswer("an event of it says nothing of an answer")
        pairs = meta.output_token_logprobs
        logprobs = [NO_LOGPROB if one.logprob is None else one.logprob for one in pairs]
        so_far = len(pairs) if meta.completion_tokens is None else meta.completion_tokens
        ids, reason = [one.token_id for one in pairs], _reason(meta.finish_reason)
        return WirePiece(ids, logprobs, reason, None, meta.weight_version, so_far)

    def goes_on(self, sampling: SamplingParams) -> bool:
        """As `Dialect.goes_on`. Its penalty is of what it makes itself."""
        return sampling.repetition_penalty == 1

    def aborting(self, wire_ids: Collection[str]) -> Sequence[Call]:
        """As `Dialect.aborting`."""
        return [Call("POST", "/abort_request", {"rid": wire_id}) for wire_id in wire_ids]

    def top_logprobs(self, one: Generation) -> Call:
        """As `Dialect.top_logprobs`."""
        return self._asking(one, {"top_logprobs_num": TOPS})

    def tops(self, body: bytes) -> Mapping[int, float]:
        """As `Dialect.tops`."""
        meta = decode(body, _Generated).meta_info
        first = meta.output_top_logprobs[0] if meta.output_top_logprobs else None
        pairs = [*(first or ()), *meta.output_token_logprobs[:1]]
        found = {one.token_id: one.logprob for one in pairs if one.logprob is not None}
        if not found:
            raise NoAnswer("it gave no log-prob")
        return found

    async def scores(
        self, client: HttpClient, token_ids: IntArray, places: IntArray, adapter: str | None
    ) -> FloatArray:
        """As `Dialect.scores`."""
        one = Generation("", token_ids, SamplingParams(max_tokens=1), adapter)
        size = ANSWER_BYTES + TOKEN_BYTES * len(token_ids)
        body = await client.body_of(self._asking(one, {"logprob_start_len": 0}, size))
        return self.text_scores(body, token_ids)[places - 1]

    def text_scores(self, body: bytes, token_ids: IntArray) -> FloatArray:
        """Read the log-probs of each token but the first, [T - 1]. Raises `NoAnswer`."""
        pairs = decode(body, _Generated).meta_info.input_token_logprobs
        if [one.token_id for one in pairs] != token_ids.tolist():
            raise NoAnswer("it scored another text than it was given")
        return text_scores([one.logprob for one in pairs[1:]])

    async def facts(
        self, client: HttpClient, model: str, root: str, max_model_len: int | None
    ) -> ServerFacts:
        """As `Dialect.facts`."""
        info = decode(await self._newer_or_older(client, "/server_info", "/get_server_info"), _ServerInfo)
        lacks = {}
        if not info.enable_lora:
            lacks[Ability.ADAPTERS] = (
                "start it with --enable-lora --max-lora-rank 16 --lora-target-modules all"
            )
        if (await client.ask(Call("GET", "/update_weights_from_disk"))).status == 404:
            lacks[Ability.WEIGHTS] = "use a newer SGLang, which has /update_weights_from_disk"
        return ServerFacts(
            self.kind,
            info.version,
            model,
            root,
            max_model_len,
            lacks,
            info.max_lora_rank if info.enable_lora else None,
        )

    async def unpause(self, client: HttpClient) -> None:
        """As `Dialect.unpause`. We never pause it."""

    async def standing(self, client: HttpClient, label: str, weights: WeightKind) -> Standing:
        """As `Dialect.standing`. The label belongs to the process, which has its adapters as long as it lives."""
        await client.body_of(Call("GET", "/health"))
        info = await self._newer_or_older(client, "/model_info", "/get_model_info")
        return Standing.SERVED if decode(info, _ModelInfo).weight_version == label else Standing.LOST

    async def take_adapter(self, client: HttpClient, label: str, directory: str) -> None:
        """As `Dialect.take_adapter`."""
        load = Call("POST", "/load_lora_adapter", {"lora_name": label, "lora_path": directory})
        if not (await client.ask(load)).is_success:  # it may be there already
            await self.drop_adapter(client, label)
            await client.body_of(load)
        version = {"new_version": label, "abort_all_requests": False}
        await client.body_of(Call("POST", "/update_weight_version", version))

    async def drop_adapter(self, client: HttpClient, label: str) -> None:
        """As `Dialect.drop_adapter`."""
        await client.ask(Call("POST", "/unload_lora_adapter", {"lora_name": label}))

    async def take_weights(
        self, client: HttpClient, label: str, directory: str, begin: Callable[[], None]
    ) -> None:
        """As `Dialect.take_weights`. There is no answer in flight that could go on by them."""
        update = {"model_path": directory, "weight_version": label, "flush_cache": True}
        await client.body_of(Call("POST", "/update_weights_from_disk", update))
        begin()

    def _asking(self, one: Generation, extra: Mapping[str, Any], max_bytes: int | None = None) -> Call:
        sampling = one.sampling
        bias = {str(token): BARRED for token in sampling.barred_token_ids}
        parameters = {
            "max_new_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "sampling_seed": sampling.seed,
            "stop": sampling.stop,
            "stop_token_ids": sampling.stop_token_ids,
            "stream_interval": STREAM_TOKENS,
            **({"logit_bias": bias} if bias else {}),
        }
        body = {
            "input_ids": one.token_ids.tolist(),
            "sampling_params": parameters,
            "return_logprob": True,
            **({"rid": one.wire_id} if one.wire_id else {}),
            **({"lora_path": one.adapter} if one.adapter else {}),
            **extra,
        }
        return Call("POST", "/generate", body, max_bytes or one.max_bytes)

    async def _newer_or_older(self, client: HttpClient, newer: str, older: str) -> bytes:
        """A route was renamed."""
        call = Call("GET", newer, max_bytes=INFO_BYTES)
        reply = await client.ask(call)
        if reply.status == 404:
            return await client.body_of(Call("GET", older, max_bytes=INFO_BYTES))
        if not reply.is_success:
            raise client.error(call, reply)
        return reply.body
