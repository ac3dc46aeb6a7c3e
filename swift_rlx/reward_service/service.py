"""A reward service without its HTTP face: who may ask, what waits, who scores."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from swift_rlx.reward_service.fair_queue import Ask, FairQueue, QueueFull
from swift_rlx.reward_service.frames import Setup
from swift_rlx.reward_service.metrics import ServiceMetrics
from swift_rlx.reward_service.pool import Batching, WorkerPool
from swift_rlx.reward_service.tenants import Gate, Refused, Tenant
from swift_rlx.reward_service.wire import MAX_ROWS, VERSION_CHANGED, Offer, ScoreReply, ScoreRequest

MAX_WORKERS = 256


@dataclass(frozen=True)
class ServiceConfig:
    """`max_queued_rows`: that may wait, of all tenants together."""

    setup: Setup
    workers: int = 1
    batching: Batching = field(default_factory=Batching)
    tenants: Sequence[Tenant] = ()
    max_queued_rows: int = 65536


class VersionRefused(Refused):
    """The service has another version of the reward; `serves` is the one."""

    def __init__(self, offer: Offer, wanted: str) -> None:
        super().__init__(
            VERSION_CHANGED, f"{offer.name} {wanted} was asked for, and {offer.version} is served"
        )
        self.serves = offer.version


class RewardService:
    """To be started; used from one asyncio loop."""

    def __init__(self, config: ServiceConfig) -> None:
        self.metrics = ServiceMetrics()
        self.gate = Gate(config.tenants, asyncio.get_running_loop().time)
        self._queue = FairQueue(config.max_queued_rows)
        self.metrics.queued_rows.set_function(lambda: len(self._queue))
        self.pool = WorkerPool(config.setup, self._queue, config.batching, self.metrics)
        self._workers = config.workers

    async def start(self) -> None:
        """Return when a worker is ready. Raises `PluginError`, `WorkerDied`."""
        await self.pool.start(self._workers)

    async def close(self) -> None:
        """End the workers. Requests that wait are answered before by whoever closes the HTTP side."""
        await self.pool.close()

    def resize(self, tenant: Tenant, workers: int) -> None:
        """Raises `Refused`."""
        if not tenant.is_admin:
            raise Refused(403, f"the tenant {tenant.name!r} may not change the number of workers")
        if not 1 <= workers <= MAX_WORKERS:
            raise Refused(422, f"{workers} workers are refused: use 1 to {MAX_WORKERS}")
        self.pool.resize(workers)

    async def score(
        self, tenant: Tenant, request: ScoreRequest, gone: Callable[[], Awaitable[None]]
    ) -> ScoreReply:
        """The reply to a request that was let in. Raises `Refused`; also where `gone` returns: nobody waits for it."""
        offer = self._offer(request)
        with self.gate.holding_rows(tenant, len(request.rows)), self._asked(tenant, request, offer) as ask:
            if ask.rows:
                leaving = asyncio.ensure_future(gone())
                try:
                    ends: list[asyncio.Future[Any]] = [ask.reply, leaving]
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    leaving.cancel()
                if not ask.reply.done():
                    raise Refused(499, "the client went away")
                return ask.reply.result()
            return ScoreReply(offer.version, [])

    @contextlib.contextmanager
    def _asked(self, tenant: Tenant, request: ScoreRequest, offer: Offer) -> Iterator[Ask]:
        reply: asyncio.Future[ScoreReply] = asyncio.get_running_loop().create_future()
        ask = Ask(tenant.name, request.reward, request.rows, reply, offer.version)
        try:
            self._queue.put(ask)
        except QueueFull as full:
            raise Refused(503, f"the service is busy: {full}", 1) from None
        try:
            yield ask
        finally:
            reply.cancel()  # rows that still wait are dropped

    def _offer(self, request: ScoreRequest) -> Offer:
        offers = {offer.name: offer for offer in self.pool.offers}
        offer = offers.get(request.reward)
        if offer is None:
            raise Refused(404, f"the reward {request.reward!r} is not served; there are {', '.join(offers)}")
        if request.version not in ("", offer.version):
            raise VersionRefused(offer, request.version)
        if len(request.rows) > MAX_ROWS:
            raise Refused(413, f"{len(request.rows)} rows are refused: a request may have {MAX_ROWS}")
        for number, row in enumerate(request.rows):
            if missing := [name for name in offer.required if name not in row.columns]:
                raise Refused(422, f"row {number} lacks the columns {missing} that {offer.name} needs")
        return offer
