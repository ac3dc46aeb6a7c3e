"""A rollout server in the loop of a test: an engine without a network behind an HTTP interface, with faults."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from swift_rlx.backends import (
    EngineSpec,
    GenerationRequest,
    OnProgress,
    WeightFiles,
    WeightKind,
    unwatched,
)
from swift_rlx.backends.progress import Draft
from swift_rlx.backends.remote_endpoint import Endpoint, parse_endpoints
from swift_rlx.errors import BackendRejected
from swift_rlx.testing.fake_engine import LOGITS, FakeEngine, save_fake_weights
from swift_rlx.types import Chunk, Completion, FinishReason, PolicyVersion, Prompt, SamplingParams

VOCABULARY = 16
MAX_MODEL_LEN = 60
DEFAULT = "default"


@dataclass
class Fault:
    """What a call gets instead of its answer."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    breaks_off: bool = False
    """The connection is closed in the middle of the body."""
    after: int = 0
    """So many events of an answer come before the rest of it is this: the body, if any, and then what is said above."""


Making = Callable[[OnProgress], Awaitable[Completion]]
FaultOf = Callable[[str, dict[str, Any]], Fault | None]


_FAULT: ContextVar[Fault | None] = ContextVar("fault")
"""Of the call that is being answered."""


@dataclass
class Weights:
    """An engine, and what the weights that it was given are called."""

    engine: Any
    labels: list[str]


class _PausableEngine(FakeEngine):
    """Makes no token while its server is paused; `resumed` gives the event of now."""

    def __init__(self, spec: EngineSpec, resumed: Callable[[], asyncio.Event]) -> None:
        super().__init__(spec)
        self._resumed = resumed

    async def _misbehave(self, request: GenerationRequest) -> None:
        while not (self._resumed().is_set() or request.request_id in self._aborted):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class StandIn:
    """A server on a port of this machine, which keeps it over a restart. `calls`: what it was asked, by path.

    `is_raw`: its log-probs ignore temperature and filters. `key`: that it wants. `fault`: asked before every call.
    `broken_weights`: it takes new weights and goes on with the old ones.
    """

    max_model_len = MAX_MODEL_LEN
    engine_has_ended = False
    """The server still listens, as it does for some time."""

    def __init__(
        self,
        folder: Path,
        *,
        token_s: float = 0.0,
        is_raw: bool = False,
        key: str | None = None,
        broken_weights: bool = False,
    ) -> None:
        self.base = self.prepare(folder)
        self.calls: Counter[str] = Counter()
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.fault: FaultOf = lambda path, body: None
        self.port = 0
        self.inflight = 0
        self.is_raw = is_raw
        self.broken_weights = broken_weights
        self._token_s = token_s
        self._key = key
        self._runner: web.AppRunner | None = None
        self._forget()

    @property
    def endpoint(self) -> Endpoint:
        """Its address."""
        return parse_endpoints([f"http://127.0.0.1:{self.port}"])[0]

    async def start(self) -> None:
        """Listen, with the weights that it starts with."""
        self._forget()
        app = web.Application(middlewares=[self._watch])
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """As a killed server: its connections are cut, its weights are gone."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            for connection in list(runner.server.connections if runner.server else ()):
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

    def routes(self) -> list[web.RouteDef]:
        """Of the kind of server."""
        raise NotImplementedError

    def prepare(self, folder: Path) -> Path:
        """The directory of the weights that it starts with."""
        save_fake_weights(folder / "base", seed=0, vocabulary=VOCABULARY)
        return folder / "base"

    def engine(self, folder: Path, update: str) -> Any:
        """An engine on the weights of a directory, that keeps or pins its answers."""
        options = {"token_s": self._token_s, "update": update}
        return _PausableEngine(
            EngineSpec("stand-in", str(folder), max_model_len=self.max_model_len, options=options),
            lambda: self.resumed,
        )

    async def adapted(self, folder: Path) -> Any:
        """An engine with the adapter of a directory."""
        return self.engine(self.base if self.broken_weights else folder, "pin")

    def holds_weights(self, folder: Path) -> bool:
        """Whether there are any."""
        return (folder / LOGITS).exists()

    def logits(self, engine: Any, ids: list[int]) -> np.ndarray[Any, Any]:
        """Of the token after a text, [V]."""
        return np.array(engine._weights.logits_VV[ids[-1]], np.float64)

    def _forget(self) -> None:
        self.full = Weights(self.engine(self.base, "keep"), [DEFAULT])
        self.adapters: dict[str, Any] = {}
        self.is_paused = False
        self.resumed = asyncio.Event()
        self.resumed.set()

    @web.middleware
    async def _watch(self, request: web.Request, handler: Any) -> web.StreamResponse:
        path = request.path
        if self._key is not None and request.headers.get("Authorization") != f"Bearer {self._key}":
            return web.json_response(
                {"error": f"Unauthorized: {request.headers.get('Authorization')}"}, status=401
            )
        raw = await request.read()
        body = json.loads(raw) if raw else {}
        self.calls[path] += 1
        self.bodies.append((path, body))
        if (fault := self.fault(path, body)) is not None and not fault.after:
            return await self._faulty(request, fault)
        _FAULT.set(fault)
        self.inflight += 1
        try:
            return await handler(request)
        except BackendRejected as error:
            return web.json_response({"error": {"message": str(error), "code": 400}}, status=400)
        finally:
            self.inflight -= 1

    async def _faulty(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.hangs:
            await asyncio.Event().wait()
        if not fault.breaks_off:
            return web.Response(status=fault.status, body=fault.body, headers=fault.headers)
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"choices": [{"token_ids": [1,')
        assert request.transport is not None
        request.transport.close()
        return response

    async def publish(self, directory: str, label: str) -> None:
        """All weights are replaced."""
        self.full.labels.append(label)
        if not self.broken_weights:
            version = PolicyVersion(0, len(self.full.labels) - 1)
            await self.full.engine.publish(version, WeightFiles(WeightKind.FULL, directory))

    async def answer(
        self,
        adapter: str | None,
        wire_id: str,
        ids: list[int],
        sampling: SamplingParams,
        on_progress: OnProgress = unwatched,
    ) -> Completion:
        """By the engine with these weights."""
        await self.resumed.wait()
        engine = self.full.engine if adapter is None else self.adapters[adapter]
        request = GenerationRequest(wire_id, Prompt(0, np.array(ids, np.int32)), 0, sampling)
        answer = await engine.generate(request, on_progress)
        if self.is_raw:
            text = np.array([*ids, *answer.token_ids.tolist()], np.int32)
            return replace(answer, logprobs=(await engine.logprobs(text))[len(ids) - 1 :])
        return answer

    async def parts(self, making: Making, interval: int) -> AsyncIterator[Completion]:
        """What there is of an answer after its first token and after every `interval` more; all of it at last.

        `making`: begins to make it, and tells of its tokens as they come.
        """
        news: asyncio.Queue[Chunk | None] = asyncio.Queue()
        task = asyncio.ensure_future(making(news.put_nowait))
        task.add_done_callback(lambda done: news.put_nowait(None))
        draft, told = Draft(), 0
        try:
            while (chunk := await news.get()) is not None:
                draft.add(chunk)
                whole = draft.whole()
                if (
                    whole is not None
                    and not self.is_raw
                    and whole.num_tokens - told >= (interval if told else 1)
                ):
                    told = whole.num_tokens
                    yield Completion(whole.token_ids, whole.logprobs, whole.policy_steps, FinishReason.ABORT)
            yield await task
        finally:
            task.cancel()

    async def send_events(
        self,
        request: web.Request,
        events: AsyncIterator[dict[str, Any]],
        error_of: Callable[[str], dict[str, Any]],
    ) -> web.StreamResponse:
        """Server-sent events, with the fault of the request behind as many as it says."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        fault, sent = _FAULT.get(), 0
        try:
            async for event in events:
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                sent += 1
                if fault is not None and sent == fault.after:
                    return await self._broken(request, response, fault)
        except BackendRejected as error:
            await response.write(b"data: " + json.dumps(error_of(str(error))).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _broken(
        self, request: web.Request, response: web.StreamResponse, fault: Fault
    ) -> web.StreamResponse:
        if fault.body:
            await response.write(fault.body)
        if fault.hangs:
            await asyncio.Event().wait()
        if fault.breaks_off:
            assert request.transport is not None
            request.transport.close()
        return response

    def tops(
        self,
        adapter: str | None,
        ids: list[int],
        sampling: SamplingParams,
        count: int,
        bias: Mapping[int, float] | None = None,
    ) -> list[tuple[int, float]]:
        """The most likely tokens after a text, with log-probs; `bias`: nats added to logits, by token."""
        row = self.logits(self.full.engine if adapter is None else self.adapters[adapter], ids).copy()
        if not self.is_raw:
            for token, nats in (bias or {}).items():
                row[token] += nats
            row = row / (sampling.temperature or 1.0)
            if sampling.top_k:
                row = np.where(row >= np.sort(row)[-sampling.top_k], row, -np.inf)
        row = np.maximum(row - row.max() - np.log(np.exp(row - row.max()).sum()), -9999.0)
        return [(int(token), float(row[token])) for token in np.argsort(-row)[:count]]

    async def abort(self, wire_ids: list[str]) -> None:
        """On every engine."""
        for engine in (self.full.engine, *self.adapters.values()):
            await engine.abort(wire_ids)

    def labels_of(self, answer: Completion) -> list[str]:
        """Of the weights behind each token."""
        return [self.full.labels[step] for step in answer.policy_steps.tolist()]


@contextlib.asynccontextmanager
async def running(*servers: StandIn) -> AsyncIterator[None]:
    """They listen within the block."""
    try:
        for server in servers:
            await server.start()
        yield
    finally:
        for server in servers:
            await server.stop()


def always(fault: Fault, *paths: str) -> FaultOf:
    """Every call of these paths gets the fault."""
    return lambda path, body: fault if path in paths else None
