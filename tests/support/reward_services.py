"""Reward services in the loop of a test: the real HTTP side and queue; scorers in the place of worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import uvicorn
from aiohttp import web

from swift_rlx.errors import WorkerDied
from swift_rlx.reward_service import pool as pool_module
from swift_rlx.reward_service.app import build_app
from swift_rlx.reward_service.frames import Scores, Setup
from swift_rlx.reward_service.service import RewardService, ServiceConfig
from swift_rlx.reward_service.wire import Offer, Row

SETUP = Setup(["length"], "v1", "", {}, [], [])


class FakeWorker:
    """Scores a completion by its length plus `shift`; "die" ends it, "bad" is a fault.

    "hang" does not return before `release` is set.
    """

    made: list[FakeWorker]
    release: asyncio.Event

    def __init__(self, offers: tuple[Offer, ...], shift: float) -> None:
        self.offers, self.shift = offers, shift
        self.batches: list[list[Row]] = []
        self.is_closed = False
        self.pid = len(FakeWorker.made)

    async def ended(self) -> None:
        """It only ends as it scores."""
        await asyncio.Event().wait()

    async def score(self, reward: str, rows: list[Row]) -> Scores:
        self.batches.append(rows)
        texts = [row.completion for row in rows]
        await asyncio.sleep(0.001)
        if "die" in texts:
            raise WorkerDied(f"worker {self.pid} ended")
        if "hang" in texts:
            await FakeWorker.release.wait()
        faults = {at: "raised ValueError" for at, text in enumerate(texts) if text == "bad"}
        return Scores([None if text == "bad" else len(text) + self.shift for text in texts], faults)

    async def close(self) -> None:
        self.is_closed = True


def use_fake_workers(
    monkeypatch: Any, *, shift: float = 0.0, names: Sequence[str] = ("length",)
) -> list[FakeWorker]:
    """From now on services have such workers; the list of those that were started, in order."""
    FakeWorker.made, FakeWorker.release = [], asyncio.Event()

    async def start(setup: Setup) -> FakeWorker:
        offers = tuple(
            Offer(name, setup.version, ("solution",) if name == "solved" else ()) for name in names
        )
        FakeWorker.made.append(FakeWorker(offers, shift + 10 * (setup.version == "v4")))
        return FakeWorker.made[-1]

    monkeypatch.setattr(pool_module.Worker, "start", start)
    return FakeWorker.made


async def until(condition: Callable[[], bool]) -> None:
    """Return when it holds; the test's own limit ends a wait in vain."""
    while not condition():  # noqa: ASYNC110 (what is waited for happens in foreign code)
        await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def running_service(config: ServiceConfig, port: int = 0) -> AsyncIterator[tuple[str, RewardService]]:
    """A service on a port; its address without a path."""
    service = RewardService(config)
    await service.start()
    settings = uvicorn.Config(build_app(service), port=port, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(settings)
    task = asyncio.ensure_future(server.serve())
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", service
    finally:
        server.should_exit = True
        await task


Reply = tuple[int, bytes | dict[str, Any], dict[str, str]]


class ScriptedService:
    """Answers `/v1/score` as a function says: status, body, headers. `calls`: by path; `inflight`: the most at once."""

    def __init__(self, answer: Callable[[dict[str, Any]], Reply | Awaitable[Reply]]) -> None:
        self.answer = answer
        self.calls: Counter[str] = Counter()
        self.inflight = self.max_inflight = 0
        self.url = ""

    async def _handle(self, request: web.Request) -> web.Response:
        self.calls[request.path] += 1
        self.inflight += 1
        self.max_inflight = max(self.max_inflight, self.inflight)
        try:
            reply = self.answer(json.loads(await request.read() or b"null"))
            status, body, headers = reply if isinstance(reply, tuple) else await reply
        finally:
            self.inflight -= 1
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(status=status, body=data, headers=headers)

    async def __aenter__(self) -> ScriptedService:
        self._runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def scored_by(version: str, shift: float = 0.0) -> Callable[[dict[str, Any]], Reply]:
    """What a service of this version answers: the length of each completion plus `shift`, or 409."""

    def answer(request: dict[str, Any]) -> Reply:
        if request["version"] not in ("", version):
            return 409, {"detail": f"{version} is served", "serves": version}, {}
        scores = [len(row["completion"]) + shift for row in request["rows"]]
        return 200, {"version": version, "scores": scores, "faults": {}}, {}

    return answer
