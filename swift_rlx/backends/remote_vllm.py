"""vLLM's server: `vllm serve`, or `python -m vllm.entrypoints.openai.api_server`.

    answers    /inference/v1/generate, which says for each token by which weights it was made (`--enable-scale-out`):
               `remote_vllm_answers.py`
    adapters   /v1/load_lora_adapter, a new name for each version (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)
    log-probs  of a text, from answers of one token: `remote_vllm_scores.py`
    weights    /pause, /start_weight_update, /update_weights, ... with our transfer `rlx_file`, whose server side is
               this package's plugin for vLLM (VLLM_SERVER_DEV_MODE=1)

An adapter is not replaced in its place: the server would then read it from its files again with every step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from swift_rlx.backends.remote_answer import decode
from swift_rlx.backends.remote_dialect import Ability, ServerFacts, Standing
from swift_rlx.backends.remote_http import Call, HttpClient
from swift_rlx.backends.remote_vllm_answers import ABORT, VllmAnswers
from swift_rlx.backends.remote_vllm_scores import scores_at
from swift_rlx.backends.vllm_plugin import FILE_TRANSFER
from swift_rlx.backends.vllm_weight_files import weight_files
from swift_rlx.backends.weights import WeightKind
from swift_rlx.errors import BackendError, BackendUnavailable, BackendUnfit
from swift_rlx.types import FloatArray, IntArray

LOAD_ADAPTER = "/v1/load_lora_adapter"
LORA_METRIC = b"vllm:lora_requests_info"
"""Counted by a server that was started with --enable-lora, if it counts anything."""
METRICS_BYTES = 16 << 20
NOWHERE = "/a-folder-that-is-nowhere"
MODELS_BYTES = 16 << 20
BROKEN = "rlx-broken"
"""Label of weights after an update that failed."""
PAUSED_TRIES, PAUSED_WAIT_S = 20, 0.5
"""How long a pause is taken for a publishing that is under way."""

DEV_MODE = "VLLM_SERVER_DEV_MODE=1"
RUNTIME_LORA = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
TRANSFER_FLAG = f"""--weight-transfer-config '{{"backend":"{FILE_TRANSFER}"}}'"""


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


class VllmDialect(VllmAnswers):
    """A `Dialect`."""

    async def scores(
        self, client: HttpClient, token_ids: IntArray, places: IntArray, adapter: str | None
    ) -> FloatArray:
        """As `Dialect.scores`."""
        return await scores_at(client, self, token_ids, places, adapter)

    async def facts(
        self, client: HttpClient, model: str, root: str, max_model_len: int | None
    ) -> ServerFacts:
        """As `Dialect.facts`. Nothing is changed, and one that was started as needed logs no traceback of it."""
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

    async def take_weights(
        self, client: HttpClient, label: str, directory: str, begin: Callable[[], None]
    ) -> None:
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
        begin()
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

    async def _is_paused(self, client: HttpClient) -> bool:
        """Without development mode nobody can pause it."""
        reply = await client.ask(Call("GET", "/is_paused"))
        return reply.is_success and decode(reply.body, _Paused).is_paused

    async def _label(self, client: HttpClient) -> str:
        return decode(await client.body_of(Call("GET", "/weight_info")), _Weights).weight_version

    async def _tokens_fault(self, client: HttpClient) -> str | None:
        """The route for ending requests, of which it is told none, is there where that for making some is."""
        status = (await client.ask(Call("POST", ABORT, {"request_ids": []}))).status
        if status in (403, 404):
            return "start it with --enable-scale-out" + (" (vLLM 0.32 or later)" if status == 404 else "")
        return None

    async def _adapters_fault(self, client: HttpClient) -> str | None:
        if (await client.ask(Call("GET", LOAD_ADAPTER))).status == 404:
            return f"set {RUNTIME_LORA} in its environment and start it with --enable-lora"
        metrics = await client.ask(Call("GET", "/metrics", max_bytes=METRICS_BYTES))
        if metrics.is_success and LORA_METRIC in metrics.body:
            return None
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
