"""vLLM's server: `vllm serve`, or `python -m vllm.entrypoints.openai.api_server`.

    answers    /inference/v1/generate, which says for each token by which weights it was made (`--enable-scale-out`)
    adapters   /v1/load_lora_adapter, a new name for each version (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)
    weights    /pause, /start_weight_update, /update_weights, ... with our transfer `rlx_file`, whose server side is
               this package's plugin for vLLM (VLLM_SERVER_DEV_MODE=1)

An adapter is not replaced in its place: the server would then read it from its files again with every step. And
/v1/completions is not used: it does not say which weights made a token, and has no tokens of an answer that is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from swift_rlx.backends.remote_answer import Count, NoAnswer, Span, TokenId, WireAnswer, decode, text_scores
from swift_rlx.backends.remote_dialect import (
    ANSWER_BYTES,
    TOKEN_BYTES,
    Ability,
    Generation,
    ServerFacts,
    ServerKind,
    Standing,
)
from swift_rlx.backends.remote_http import Call, HttpClient
from swift_rlx.backends.vllm_plugin import FILE_TRANSFER
from swift_rlx.backends.vllm_weight_files import weight_files
from swift_rlx.backends.weights import WeightKind
from swift_rlx.errors import BackendError, BackendUnavailable, BackendUnfit
from swift_rlx.types import FinishReason, FloatArray, IntArray, SamplingParams

GENERATE = "/inference/v1/generate"
LOAD_ADAPTER = "/v1/load_lora_adapter"
NOWHERE = "/a-folder-that-is-nowhere"
BARRED = -1e9
"""Added to the logit of a token that is not to be sampled; JSON has no infinity."""
TOPS = 10
MODELS_BYTES = 16 << 20
BROKEN = "rlx-broken"
"""Label of weights after an update that failed."""
PAUSED_TRIES, PAUSED_WAIT_S = 20, 0.5
"""How long a pause is taken for a publishing that is under way."""

DEV_MODE = "VLLM_SERVER_DEV_MODE=1"
RUNTIME_LORA = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
TRANSFER_FLAG = f"""--weight-transfer-config '{{"backend":"{FILE_TRANSFER}"}}'"""


class _Top(msgspec.Struct):
    token_id: TokenId
    logprob: float


class _Entry(_Top):
    top_logprobs: list[_Top] = []


class _Logprobs(msgspec.Struct):
    content: list[_Entry]


class _Span(msgspec.Struct):
    version: str
    start: Count
    end: Count


class _Choice(msgspec.Struct):
    token_ids: list[TokenId]
    logprobs: _Logprobs
    finish_reason: str
    weight_versions: list[_Span] | None = None


class _PromptLogprob(msgspec.Struct):
    logprob: float


class _Generated(msgspec.Struct):
    choices: list[_Choice]
    prompt_logprobs: list[dict[str, _PromptLogprob] | None] | None = None


class _Version(msgspec.Struct):
    version: str


class _Paused(msgspec.Struct):
    is_paused: bool


class _Weights(msgspec.Struct):
    weight_version: str


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class VllmDialect:
    """A `Dialect`."""

    kind = ServerKind.VLLM

    def generation(self, one: Generation) -> Call:
        """As `Dialect.generation`."""
        return self._asking(one, {"logprobs": 0})

    def answer(self, body: bytes) -> WireAnswer:
        """As `Dialect.answer`."""
        choice = _only_choice(decode(body, _Generated))
        entries = choice.logprobs.content
        if [one.token_id for one in entries] != choice.token_ids[: len(entries)]:
            raise NoAnswer("its log-probs are of other tokens than its answer")
        try:
            reason = FinishReason(choice.finish_reason)
        except ValueError:
            raise NoAnswer(f"it ended an answer by {choice.finish_reason[:40]!r}") from None
        spans = [Span(one.version, one.start, one.end) for one in choice.weight_versions or ()]
        return WireAnswer(choice.token_ids, [one.logprob for one in entries], reason, spans)

    def aborting(self, wire_ids: Collection[str]) -> Sequence[Call]:
        """As `Dialect.aborting`."""
        ids = [f"generate-tokens-{wire_id}" for wire_id in wire_ids]
        return [Call("POST", "/inference/v1/abort_requests", {"request_ids": ids})]

    def top_logprobs(self, one: Generation) -> Call:
        """As `Dialect.top_logprobs`."""
        return self._asking(one, {"logprobs": TOPS})

    def tops(self, body: bytes) -> Mapping[int, float]:
        """As `Dialect.tops`."""
        entries = _only_choice(decode(body, _Generated)).logprobs.content
        if not entries:
            raise NoAnswer("it gave no log-prob")
        tops: list[_Top] = [*entries[0].top_logprobs, entries[0]]
        return {one.token_id: one.logprob for one in tops}

    def scoring(self, token_ids: IntArray, adapter: str | None) -> Call:
        """As `Dialect.scoring`."""
        one = Generation("", token_ids, SamplingParams(max_tokens=1), adapter)
        size = ANSWER_BYTES + TOKEN_BYTES * len(token_ids)
        return self._asking(one, {"logprobs": 0, "prompt_logprobs": 0}, size)

    def scores(self, body: bytes, token_ids: IntArray) -> FloatArray:
        """As `Dialect.scores`."""
        found = decode(body, _Generated).prompt_logprobs or []
        if len(found) != len(token_ids):
            raise NoAnswer(f"it scored {len(found)} of {len(token_ids)} tokens")
        scores = [
            position[str(token)].logprob if position is not None and str(token) in position else None
            for token, position in zip(token_ids[1:].tolist(), found[1:], strict=True)
        ]
        return text_scores(scores)

    async def facts(
        self, client: HttpClient, model: str, root: str, max_model_len: int | None
    ) -> ServerFacts:
        """As `Dialect.facts`. Nothing is changed: the adapter that it is told to load does not exist."""
        version = decode(await client.body_of(Call("GET", "/version")), _Version).version
        is_open = (await client.ask(Call("GET", "/is_paused"))).is_success
        lacks = {
            Ability.TOKENS: await self._tokens_fault(client),
            Ability.ADAPTERS: await self._adapters_fault(client),
            Ability.WEIGHTS: await self._weights_fault(client, is_open),
        }
        found = {ability: change for ability, change in lacks.items() if change is not None}
        return ServerFacts(self.kind, version, model, root, max_model_len, found, is_open=is_open)

    async def unpause(self, client: HttpClient) -> None:
        """As `Dialect.unpause`. A publishing of somebody else is given time to end."""
        for _ in range(PAUSED_TRIES):
            if not await self._is_paused(client):
                return
            await asyncio.sleep(PAUSED_WAIT_S)
        if await self._label(client) == BROKEN:
            raise BackendUnfit(
                f"{client.endpoint.url} has broken weights, since it failed to take some: start it again"
            )
        await client.body_of(Call("POST", "/resume"))

    async def standing(self, client: HttpClient, label: str, weights: WeightKind) -> Standing:
        """As `Dialect.standing`. An adapter has a name of its own, full weights have a label."""
        await client.body_of(Call("GET", "/health"))
        if await self._is_paused(client):
            return Standing.PAUSED
        if weights is WeightKind.FULL:
            is_there = await self._label(client) == label
        else:
            models = decode(await client.body_of(Call("GET", "/v1/models", max_bytes=MODELS_BYTES)), _Models)
            is_there = any(model.id == label for model in models.data)
        return Standing.SERVED if is_there else Standing.LOST

    async def take_adapter(self, client: HttpClient, label: str, directory: str) -> None:
        """As `Dialect.take_adapter`."""
        await client.body_of(Call("POST", LOAD_ADAPTER, {"lora_name": label, "lora_path": directory}))

    async def drop_adapter(self, client: HttpClient, label: str) -> None:
        """As `Dialect.drop_adapter`."""
        await client.ask(Call("POST", "/v1/unload_lora_adapter", {"lora_name": label}))

    async def take_weights(self, client: HttpClient, label: str, directory: str) -> None:
        """As `Dialect.take_weights`. Answers in flight wait, and go on with their prefix computed anew."""
        count = len(weight_files(Path(directory)))
        update = {"update_info": {"directory": directory, "num_files": count}}
        await client.body_of(Call("POST", "/pause?mode=keep&clear_cache=true"))
        try:
            await self._start_update(client)
            await client.body_of(Call("POST", "/update_weights", update))
            await client.body_of(Call("POST", "/finish_weight_update", {"weight_version": label}))
        except BackendError:
            await self._give_up_update(client)
            raise
        await client.body_of(Call("POST", "/resume"))

    async def _start_update(self, client: HttpClient) -> None:
        """Also where somebody broke off in the middle of one."""
        start = Call("POST", "/start_weight_update")
        if not (await client.ask(start)).is_success:
            await client.ask(Call("POST", "/finish_weight_update", {}))
            await client.body_of(start)

    async def _give_up_update(self, client: HttpClient) -> None:
        """The weights may be anything: stay paused, give answers in flight back, and carry no label of a version."""
        try:
            await client.ask(Call("POST", "/finish_weight_update", {"weight_version": BROKEN}))
            await client.ask(Call("POST", "/pause?mode=abort&clear_cache=true"))
        except BackendUnavailable:
            return  # it is gone, and its weights with it

    def _asking(self, one: Generation, extra: Mapping[str, Any], max_bytes: int | None = None) -> Call:
        sampling = one.sampling
        bias = {str(token): BARRED for token in sampling.barred_token_ids}
        parameters = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": sampling.seed,
            "stop": sampling.stop,
            "stop_token_ids": sampling.stop_token_ids,
            "detokenize": bool(sampling.stop),
            **({"logit_bias": bias} if bias else {}),
            **extra,
        }
        body = {
            "token_ids": one.token_ids.tolist(),
            "sampling_params": parameters,
            **({"request_id": one.wire_id} if one.wire_id else {}),
            **({"model": one.adapter} if one.adapter else {}),
        }
        return Call("POST", GENERATE, body, max_bytes or one.max_bytes)

    async def _is_paused(self, client: HttpClient) -> bool:
        """Without development mode nobody can pause it."""
        reply = await client.ask(Call("GET", "/is_paused"))
        return reply.is_success and decode(reply.body, _Paused).is_paused

    async def _label(self, client: HttpClient) -> str:
        return decode(await client.body_of(Call("GET", "/weight_info")), _Weights).weight_version

    async def _tokens_fault(self, client: HttpClient) -> str | None:
        """A request without content is refused for that by a server that has the route."""
        status = (await client.ask(Call("POST", GENERATE, {}))).status
        if status in (403, 404):
            return "start it with --enable-scale-out" + (" (vLLM 0.32 or later)" if status == 404 else "")
        return None

    async def _adapters_fault(self, client: HttpClient) -> str | None:
        if (await client.ask(Call("GET", LOAD_ADAPTER))).status == 404:
            return f"set {RUNTIME_LORA} in its environment and start it with --enable-lora"
        reply = await client.ask(
            Call("POST", LOAD_ADAPTER, {"lora_name": "rlx-asking", "lora_path": NOWHERE})
        )
        return (
            None if reply.status == 404 else f"start it with --enable-lora (it says: {client.words(reply)})"
        )

    async def _weights_fault(self, client: HttpClient, is_open: bool) -> str | None:
        if not is_open:
            return f"set {DEV_MODE} in its environment and start it with {TRANSFER_FLAG}"
        reply = await client.ask(Call("POST", "/init_weight_transfer_engine", {"init_info": {}}))
        if reply.is_success:
            return None
        return f"install this package beside it and start it with {TRANSFER_FLAG} (it says: {client.words(reply)})"


def _only_choice(generated: _Generated) -> _Choice:
    if len(generated.choices) != 1:
        raise NoAnswer(f"it gave {len(generated.choices)} answers to one request")
    return generated.choices[0]
