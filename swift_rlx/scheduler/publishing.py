"""The order in which weights reach the workers. Workers do not wait for each other.

    keep, pin    publish                                      answers in flight live through it
    drain        pause, wait for the last answer, publish, open
    abort        pause, cut the answers that were not cut before, wait for the others, publish, open

A worker that fails at it is ejected, and gets the weights before it is readmitted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from swift_rlx.backends.base import WeightUpdate
from swift_rlx.errors import BackendError
from swift_rlx.scheduler.requests import within
from swift_rlx.scheduler.routing import Router, Worker, WorkerState
from swift_rlx.types import PolicyVersion


class Publisher:
    """Publishes one version at a time. `cut(worker)` tells the worker to end what may be cut."""

    def __init__(
        self,
        mode: WeightUpdate,
        router: Router,
        cut: Callable[[Worker], None],
        on_failure: Callable[[Worker, BackendError], None],
        limit_s: float,
    ) -> None:
        self._limit_s = limit_s
        self.mode = mode
        self._router = router
        self._cut = cut
        self._on_failure = on_failure
        self._settled = {worker.name: asyncio.Event() for worker in router.workers}
        router.on_eject = lambda worker: self._settled[worker.name].set()

    def released(self, worker: Worker) -> None:
        """A slot of the worker was given back."""
        if worker.inflight == 0:
            self._settled[worker.name].set()

    async def publish(self, version: PolicyVersion, payload: object) -> None:
        """Return when every worker that is not ejected serves `version`; that may be none."""
        while workers := self._lagging(version):  # one may be readmitted meanwhile, with older weights
            await asyncio.gather(*(self._publish_to(worker, version, payload) for worker in workers))

    def _lagging(self, version: PolicyVersion) -> list[Worker]:
        return [
            worker
            for worker in self._router.workers
            if worker.state is not WorkerState.EJECTED and worker.version != version
        ]

    async def _publish_to(self, worker: Worker, version: PolicyVersion, payload: object) -> None:
        if self.mode in (WeightUpdate.DRAIN, WeightUpdate.ABORT):
            worker.state = WorkerState.PAUSED
            if self.mode is WeightUpdate.ABORT:
                self._cut(worker)
            await self._wait_until_settled(worker)
            if worker.state is not WorkerState.PAUSED:
                return  # it was ejected meanwhile
        try:
            await give_weights(worker, version, payload, self._limit_s)
        except BackendError as error:
            self._on_failure(worker, error)
            return
        worker.version = version
        if worker.state is WorkerState.PAUSED:
            worker.state = WorkerState.OPEN

    async def _wait_until_settled(self, worker: Worker) -> None:
        """Until nothing is in flight on it, or it is ejected: with requests that hang it would hold up the others."""
        while worker.inflight and worker.state is WorkerState.PAUSED:
            self._settled[worker.name].clear()
            await self._settled[worker.name].wait()


async def give_weights(worker: Worker, version: PolicyVersion, payload: object, limit_s: float) -> None:
    """Let one worker take weights; its answers need not show signs of life meanwhile. Raises `BackendError`."""
    with contextlib.nullcontext() if worker.pulse is None else worker.pulse.publishing():
        publishing = worker.backend.publish(version, payload)
        await within(limit_s, publishing, f"worker '{worker.name}' to take weights {version}")
