"""The HTTP interface of SGLang's server, as its documentation has it, as far as rollouts need it, on a `StandIn`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from stand_in_server import DEFAULT, Making, StandIn

from swift_rlx.errors import BackendRejected
from swift_rlx.types import Completion, SamplingParams


class StandInSglang(StandIn):
    """`lora`: it was started with --enable-lora. `is_old`: it has the routes under their former names.

    `is_incremental`: it was started with --incremental-streaming-output. Its log-probs know the temperature and no
    filter.
    """

    def __init__(
        self,
        folder: Path,
        *,
        lora: bool = True,
        is_old: bool = False,
        is_incremental: bool = False,
        **options: Any,
    ) -> None:
        self.lora = lora
        self.is_incremental = is_incremental
        self.is_old = is_old
        super().__init__(folder, **options)

    def routes(self) -> list[web.RouteDef]:
        prefix = "/get_" if self.is_old else "/"
        return [
            web.get("/health", self._health),
            web.get("/v1/models", self._models),
            web.get(f"{prefix}server_info", self._server_info),
            web.get(f"{prefix}model_info", self._model_info),
            web.post("/generate", self._generate),
            web.post("/abort_request", self._abort),
            web.post("/load_lora_adapter", self._load),
            web.post("/unload_lora_adapter", self._unload),
            web.post("/update_weight_version", self._rename),
            web.post("/update_weights_from_disk", self._update),
        ]

    def _forget(self) -> None:
        super()._forget()
        self.label = DEFAULT

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.engine_has_ended else 200)

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": "tiny", "owned_by": "sglang", "root": "tiny", "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [card]})

    async def _server_info(self, request: web.Request) -> web.Response:
        info = {"version": "0.5.9", "enable_lora": self.lora, "max_lora_rank": 8 if self.lora else None}
        return web.json_response(info | {"api_key": "the server's own", "internal_states": [{}]})

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "tiny", "is_generation": True, "weight_version": self.label})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        ids, given, adapter = body["input_ids"], body["sampling_params"], body.get("lora_path")
        fault = None
        if adapter is not None and adapter not in self.adapters:
            fault = f"{adapter} is not loaded"
        if len(ids) + given["max_new_tokens"] > self.max_model_len:
            fault = "Requested token count is too large"
        if fault is not None:
            return await self._refuse(request, fault, is_stream=bool(body.get("stream")))
        sampling = _sampling(given)
        make = partial(self.answer, adapter, body.get("rid", "unnamed"), ids, sampling)
        if body.get("stream"):
            events = self._events(body, make, given["stream_interval"])
            return await self.send_events(request, events, lambda words: {"error": {"message": words}})
        content = await self._content(body, await make(), is_end=True)
        meta = content["meta_info"]
        if count := body.get("top_logprobs_num"):
            tops = self.tops(adapter, ids, SamplingParams(temperature=sampling.temperature), count)
            meta["output_top_logprobs"] = [[[lp, token, None] for token, lp in tops]]
        if "logprob_start_len" in body:
            engine = self.full.engine if adapter is None else self.adapters[adapter]
            scores = [None, *(await engine.logprobs(np.array(ids, np.int32))).tolist()]
            meta["input_token_logprobs"] = [
                [score, token, None] for token, score in zip(ids, scores, strict=True)
            ]
        return web.json_response(content)

    async def _refuse(self, request: web.Request, words: str, *, is_stream: bool) -> web.StreamResponse:
        """An answer in events has begun before the request is looked at."""
        content = {"error": {"message": words}}
        if not is_stream:
            return web.json_response(content, status=400)

        async def nothing() -> AsyncIterator[dict[str, Any]]:
            raise BackendRejected(words)
            yield {}

        return await self.send_events(request, nothing(), lambda words: content)

    async def _events(
        self, body: dict[str, Any], make: Making, interval: int
    ) -> AsyncIterator[dict[str, Any]]:
        """Each repeats what came before it, unless the server was started for the contrary."""
        begin = 0
        async for answer in self.parts(make, interval):
            content = await self._content(body, answer, is_end=bool(answer.finish_s))
            if self.is_incremental:
                content["output_ids"] = content["output_ids"][begin:]
                pairs = content["meta_info"]["output_token_logprobs"]
                content["meta_info"]["output_token_logprobs"] = pairs[begin:]
                begin = answer.num_tokens
            yield content

    async def _content(self, body: dict[str, Any], answer: Completion, *, is_end: bool) -> dict[str, Any]:
        ids, adapter, sampling = body["input_ids"], body.get("lora_path"), _sampling(body["sampling_params"])
        tokens = answer.token_ids.tolist()
        pairs = [[lp, token, None] for token, lp in zip(tokens, answer.logprobs.tolist(), strict=True)]
        if sampling.top_k and not self.is_raw:
            pairs = await self._before_filters(adapter, ids, pairs, sampling.temperature)
        reason = {"type": answer.finish_reason.value, "length": len(tokens)}
        meta = {
            "id": body.get("rid"),
            "finish_reason": reason if is_end else None,
            "weight_version": self.label,
            "completion_tokens": len(tokens),
            "output_token_logprobs": pairs,
        }
        return {"text": "", "output_ids": tokens, "meta_info": meta}

    async def _before_filters(
        self, adapter: str | None, ids: list[int], pairs: list[Any], temperature: float
    ) -> list[Any]:
        found, so_far = [], list(ids)
        for _, token, text in pairs:
            every = dict(self.tops(adapter, so_far, SamplingParams(temperature=temperature), 1000))
            found.append([every[token], token, text])
            so_far.append(token)
        return found

    async def _abort(self, request: web.Request) -> web.Response:
        await self.abort([(await request.json())["rid"]])
        return web.Response()

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, path = body["lora_name"], Path(body["lora_path"])
        if not self.holds_weights(path) or name in self.adapters:
            return web.json_response({"success": False, "error_message": f"cannot load {name}"}, status=400)
        self.adapters[name] = await self.adapted(path)
        return web.json_response({"success": True, "loaded_adapters": dict.fromkeys(self.adapters, "")})

    async def _unload(self, request: web.Request) -> web.Response:
        found = self.adapters.pop((await request.json())["lora_name"], None)
        return web.json_response({"success": found is not None}, status=200 if found else 400)

    async def _rename(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body.get("abort_all_requests", True):
            await self.abort([*self.full.engine._running])
        self.label = body["new_version"]
        return web.json_response({"success": True, "new_version": self.label})

    async def _update(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not self.holds_weights(Path(body["model_path"])):
            return web.json_response({"success": False, "message": "Failed to get weights"}, status=400)
        await self.publish(body["model_path"], body["weight_version"])
        self.label = body["weight_version"]
        return web.json_response({"success": True, "message": "Succeeded to update model weights."})


def _sampling(given: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        max_tokens=given["max_new_tokens"],
        temperature=given["temperature"],
        top_k=max(given["top_k"], 0),
        seed=given["sampling_seed"],
        stop_token_ids=tuple(given["stop_token_ids"]),
    )
