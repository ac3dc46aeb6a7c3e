"""The HTTP interface of vLLM 0.32's server, as far as rollouts need it, on a `StandIn`."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from stand_in_server import Making, StandIn

from swift_rlx.backends.remote_vllm import BROKEN
from swift_rlx.types import Completion, SamplingParams

MODEL = "tiny"
_unnamed = itertools.count()


class StandInVllm(StandIn):
    """Flags of a real one: `scale_out`, `dev_mode`, `runtime_lora`, `lora`, `transfer` and `metrics`."""

    def __init__(self, folder: Path, **options: Any) -> None:
        flags = ("scale_out", "dev_mode", "runtime_lora", "lora", "transfer", "metrics")
        self.flags = {flag: options.pop(flag, True) for flag in flags}
        super().__init__(folder, **options)

    def routes(self) -> list[web.RouteDef]:
        flags, get, post = self.flags, web.get, web.post
        found = [
            get("/version", lambda request: web.json_response({"version": "0.32.0"})),
            get("/health", self._health),
            get("/v1/models", self._models),
            post("/inference/v1/generate", self._generate if flags["scale_out"] else self._disabled),
            post("/inference/v1/abort_requests", self._abort if flags["scale_out"] else self._disabled),
            get("/metrics", self._metrics),
        ]
        if flags["runtime_lora"]:
            found += [
                post("/v1/load_lora_adapter", self._load),
                post("/v1/unload_lora_adapter", self._unload),
            ]
        if flags["dev_mode"]:
            found += [
                get("/is_paused", lambda request: _json({"is_paused": self.is_paused})),
                get("/weight_info", lambda request: _json({"weight_version": self.full.labels[-1]})),
                post("/pause", self._pause),
                post("/resume", self._resume),
                post("/init_weight_transfer_engine", self._transfer),
                post("/start_weight_update", self._start),
                post("/update_weights", self._update),
                post("/finish_weight_update", self._finish),
            ]
        return [web.RouteDef(one.method, one.path, _asynchronous(one.handler), {}) for one in found]

    def _forget(self) -> None:
        super()._forget()
        self.is_updating = False
        self._directory = ""

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.engine_has_ended else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        lora = "# HELP vllm:lora_requests_info Running stats on lora requests.\n"
        return web.Response(
            text=lora if self.flags["lora"] and self.flags["metrics"] else "# HELP vllm:x y\n"
        )

    async def _disabled(self, request: web.Request) -> web.Response:
        return _error("Scale-out endpoints are disabled.", 403)

    async def _models(self, request: web.Request) -> web.Response:
        cards = [{"id": MODEL, "owned_by": "vllm", "root": str(self.base), "parent": None}]
        cards[0] |= {"max_model_len": self.max_model_len}
        cards += [{"id": name, "owned_by": "vllm", "root": "", "parent": MODEL} for name in self.adapters]
        return _json({"object": "list", "data": cards})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not {"token_ids", "sampling_params"} <= body.keys():
            return _error("2 validation errors", 400)
        adapter = body.get("model")
        if adapter is not None and adapter not in self.adapters:
            return _error(f"The model `{adapter}` does not exist.", 404)
        ids, given = body["token_ids"], body["sampling_params"]
        if not 0 <= given["temperature"] <= 2:
            return _error(f"temperature must be in [0, 2], got {given['temperature']}.", 400)
        sampling, wire_id = _sampling(given), body.get("request_id") or f"unnamed-{next(_unnamed)}"
        make = partial(self.answer, adapter, wire_id, ids, sampling)
        name = f"generate-tokens-{wire_id}"
        if body.get("stream"):
            events = self._events(name, make, given["stream_interval"])
            return await self.send_events(request, events, lambda words: _error_content(words, 400))
        answer = await make()
        choice = self._choice(answer, 0)
        if choice["logprobs"]["content"]:
            bias = {int(token): nats for token, nats in given.get("logit_bias", {}).items()}
            tops = self.tops(adapter, ids, sampling, given["logprobs"], bias)
            if bias:
                choice["token_ids"][0], logprob = tops[0]
                choice["logprobs"]["content"][0] |= {"token_id": tops[0][0], "logprob": logprob}
            rows = [{"token_id": one, "logprob": value, "rank": 1} for one, value in tops]
            choice["logprobs"]["content"][0]["top_logprobs"] = rows
        return _json({"request_id": name, "choices": [choice], "prompt_logprobs": None})

    async def _events(self, name: str, make: Making, interval: int) -> AsyncIterator[dict[str, Any]]:
        """The spans of the weights come with the last one."""
        begin = 0
        async for answer in self.parts(make, interval):
            choice = self._choice(answer, begin)
            if is_last := bool(answer.finish_s):
                choice["weight_versions"] = _spans(self.labels_of(answer))
            else:
                choice |= {"finish_reason": None, "weight_versions": None}
            begin = answer.num_tokens
            if is_last or choice["token_ids"]:
                yield {"request_id": name, "usage": None, "output_mode": "tokens", "choices": [choice]}

    def _choice(self, answer: Completion, begin: int) -> dict[str, Any]:
        """The tokens from place `begin` on."""
        pairs = zip(answer.token_ids.tolist(), answer.logprobs.tolist(), strict=True)
        content = [
            {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": []} for token, logprob in pairs
        ]
        return {
            "index": 0,
            "finish_reason": answer.finish_reason.value,
            "stop_reason": None,
            "token_ids": answer.token_ids.tolist()[begin:],
            "logprobs": {"content": content[begin:]},
            "weight_versions": _spans(self.labels_of(answer)),
        }

    async def _abort(self, request: web.Request) -> web.Response:
        ids = (await request.json())["request_ids"]
        await self.abort([one.removeprefix("generate-tokens-") for one in ids])
        return web.Response()

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, path = body["lora_name"], body["lora_path"]
        if not self.flags["lora"]:
            return _error("Call to add_lora method failed: LoRA is not enabled.", 500)
        if not self.holds_weights(Path(path)):
            return _error(f"Loading lora {name} failed: No adapter found for {path}", 404)
        if name in self.adapters:
            return _error(f"The lora adapter '{name}' has already been loaded.", 400)
        self.adapters[name] = await self.adapted(Path(path))
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if name not in self.adapters:
            return _error(f"The lora adapter '{name}' cannot be found.", 404)
        del self.adapters[name]
        return web.Response(text="Success")

    async def _pause(self, request: web.Request) -> web.Response:
        self.is_paused = True
        self.resumed.clear()
        if request.query["mode"] == "abort":
            await self.abort([*self.full.engine._running])
        return _json({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self.is_paused = False
        self.resumed.set()
        return _json({"status": "resumed"})

    async def _transfer(self, request: web.Request) -> web.Response:
        if not self.flags["transfer"]:
            return _error("Weight transfer not configured.", 500)
        return _json({"message": "Weight transfer initialized"})

    async def _start(self, request: web.Request) -> web.Response:
        if self.is_updating:
            return _error("start_weight_update called while a weight update is already active", 500)
        self.is_updating = True
        return _json({"message": "Weight update started"})

    async def _update(self, request: web.Request) -> web.Response:
        self._directory = (await request.json())["update_info"]["directory"]
        if not self.holds_weights(Path(self._directory)):
            return _error(f"{self._directory} has 0 files of weights here", 500)
        return _json({"message": "Weights updated"})

    async def _finish(self, request: web.Request) -> web.Response:
        self.is_updating = False
        raw = await request.read()
        label = json.loads(raw).get("weight_version") if raw else None
        if label == BROKEN:
            self.full.labels.append(label)
        elif label is not None:
            await self.publish(self._directory, label)
        return _json({"message": "Weight update finished"})


def _sampling(given: dict[str, Any]) -> SamplingParams:
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
    return SamplingParams(
        **{name: given[name] for name in names}, stop_token_ids=tuple(given["stop_token_ids"])
    )


def _spans(labels: list[str]) -> list[dict[str, Any]]:
    spans, start = [], 0
    for label, group in itertools.groupby(labels):
        end = start + len(list(group))
        spans.append({"version": label, "start": start, "end": end})
        start = end
    return spans


def _json(content: Any) -> web.Response:
    return web.json_response(content)


def _error(message: str, status: int) -> web.Response:
    return web.json_response(_error_content(message, status), status=status)


def _error_content(message: str, status: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}


def _asynchronous(handler: Any) -> Any:
    async def handle(request: web.Request) -> web.StreamResponse:
        found = handler(request)
        return await found if hasattr(found, "__await__") else found

    return handle
