"""The HTTP face of a reward service: FastAPI, which ms-swift requires anyway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from fastapi import FastAPI, Request, Response

from swift_rlx.reward_service.service import RewardService, VersionRefused
from swift_rlx.reward_service.tenants import Refused, Tenant
from swift_rlx.reward_service.wire import MAX_BODY_BYTES, Listing, NotAReply, Refusal, ScoreRequest, decode

BODY_LIMIT_S = 30.0
"""How long a request may take to arrive."""
SMALL_BYTES = 1 << 16
_JSON = "application/json"


class _Resize(msgspec.Struct):
    workers: int


def build_app(service: RewardService) -> FastAPI:
    """The application of a service that was started; it closes the service at its end.

    The schema pages are left out: they would describe bodies that are decoded here, not by FastAPI.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(title="swift-rlx reward service", lifespan=lifespan, openapi_url=None)
    routes = _Routes(service)
    app.add_api_route("/health", routes.health, methods=["GET"])
    app.add_api_route("/metrics", routes.metrics, methods=["GET"])
    app.add_api_route("/v1/rewards", routes.rewards, methods=["GET"])
    app.add_api_route("/v1/score", routes.score, methods=["POST"])
    app.add_api_route("/v1/workers", routes.workers, methods=["POST"])
    return app


class _Routes:
    def __init__(self, service: RewardService) -> None:
        self._service = service

    async def health(self) -> Response:
        """Open to everybody; answers while rewards are scored, which happens in other processes."""
        pool = self._service.pool
        body = {
            "ready": pool.ready,
            "workers": pool.size,
            "versions": {offer.name: offer.version for offer in pool.offers},
        }
        return Response(msgspec.json.encode(body), 200 if pool.ready else 503, media_type=_JSON)

    async def metrics(self, request: Request) -> Response:
        async def answer(tenant: Tenant) -> Response:
            return Response(
                self._service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
            )

        return await self._let_in(request, answer)

    async def rewards(self, request: Request) -> Response:
        async def answer(tenant: Tenant) -> Response:
            return _record(Listing(self._service.pool.offers))

        return await self._let_in(request, answer)

    async def workers(self, request: Request) -> Response:
        async def answer(tenant: Tenant) -> Response:
            try:
                body = await _read_body(request, lambda size: None, SMALL_BYTES)
                wanted = msgspec.json.decode(body, type=_Resize)
            except (msgspec.DecodeError, ValueError) as error:
                raise Refused(422, f'send {{"workers": N}}: {error}') from None
            self._service.resize(tenant, wanted.workers)
            return _record(wanted)

        return await self._let_in(request, answer)

    async def score(self, request: Request) -> Response:
        response: Response | None = None
        name = "unknown"

        async def answer(tenant: Tenant) -> Response:
            nonlocal name
            name = tenant.name
            gate = self._service.gate
            gate.count_request(tenant)
            with gate.holding_bytes(tenant) as hold:
                asked = await _read_request(request, hold)
                return _record(await self._service.score(tenant, asked, _gone(request)))

        try:
            response = await self._let_in(request, answer)
            return response
        finally:
            status = "failed" if response is None else str(response.status_code)
            self._service.metrics.requests.labels(name, status).inc()

    async def _let_in(self, request: Request, answer: Callable[[Tenant], Awaitable[Response]]) -> Response:
        try:
            return await answer(self._service.gate.tenant(request.headers.get("Authorization")))
        except Refused as refused:
            serves = refused.serves if isinstance(refused, VersionRefused) else ""
            response = _record(Refusal(refused.sentence, serves), refused.status)
            if refused.retry_after_s is not None:
                response.headers["Retry-After"] = str(refused.retry_after_s)
            return response


async def _read_request(request: Request, hold: Callable[[int], None]) -> ScoreRequest:
    try:
        body = await asyncio.wait_for(_read_body(request, hold, MAX_BODY_BYTES), BODY_LIMIT_S)
    except asyncio.TimeoutError:
        raise Refused(408, f"the request did not arrive within {BODY_LIMIT_S:g} s") from None
    try:
        return decode(body, ScoreRequest)
    except NotAReply as error:
        raise Refused(422, f"the client {error}") from None


async def _read_body(request: Request, hold: Callable[[int], None], max_bytes: int) -> bytes:
    parts = bytearray()
    async for part in request.stream():
        hold(len(part))
        parts += part
        if len(parts) > max_bytes:
            raise Refused(413, f"a request of more than {max_bytes} bytes is refused")
    return bytes(parts)


def _gone(request: Request) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return wait


def _record(record: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(record), status, media_type=_JSON)
