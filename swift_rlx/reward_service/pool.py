"""The workers of a reward service: each takes batches from the queue; they may be added and removed at any time.

Invariants
- Every row that is taken from the queue is settled: with a score, or with the reason why it has none.
- A worker that ends or does not answer in time is replaced, and the rows of its batch are scored again, each by itself.
  A row that ends a worker by itself is settled with that reason, and not tried again.
- A worker that is removed finishes its batch.
- All workers have the same rewards in the same versions.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swift_rlx.errors import PluginError, WorkerDied
from swift_rlx.reward_service.fair_queue import FairQueue, Waiting
from swift_rlx.reward_service.frames import Scores, Setup
from swift_rlx.reward_service.metrics import ServiceMetrics
from swift_rlx.reward_service.wire import Offer
from swift_rlx.reward_service.worker import Worker

logger = logging.getLogger("swift_rlx")

RESTART_S = (0.5, 2.0, 10.0, 30.0)
"""Pauses before a worker is started again that could not be started."""


@dataclass(frozen=True)
class Batching:
    """`max_rows` are scored together, fewer `window_s` after the first came; `limit_s`: for a batch."""

    max_rows: int = 32
    window_s: float = 0.01
    limit_s: float = 60.0


@dataclass(eq=False)
class _Slot:
    """A worker's place. `leaving`: it is to be removed."""

    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    is_ready: bool = False


class WorkerPool:
    """Used from one asyncio loop."""

    def __init__(self, setup: Setup, queue: FairQueue, batching: Batching, metrics: ServiceMetrics) -> None:
        self.offers: tuple[Offer, ...] = ()
        self._setup, self._queue, self._batching, self._metrics = setup, queue, batching, metrics
        self._slots: list[_Slot] = []
        self._plugins: dict[str, str] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self, size: int) -> None:
        """Return when one worker is ready. Raises `PluginError` where the rewards cannot be built, `WorkerDied`."""
        self._plugins = _digests(self._setup.plugins)
        first = await Worker.start(self._setup)
        self.offers = first.offers
        self._add(first)
        await asyncio.sleep(0)  # from here on its place ends it, whatever happens
        self.resize(size)

    @property
    def size(self) -> int:
        """Workers that there shall be."""
        return len(self._slots)

    @property
    def ready(self) -> int:
        """Workers that can score now."""
        return sum(slot.is_ready for slot in self._slots)

    def resize(self, size: int) -> None:
        """Add or remove workers; returns before they have started or ended."""
        while len(self._slots) < size:
            self._add(None)
        while len(self._slots) > size:
            slot = self._slots.pop()
            slot.leaving.set()
            assert slot.task is not None
            self._leaving.add(slot.task)
            slot.task.add_done_callback(self._leaving.discard)
        self._show()

    async def close(self) -> None:
        """End all workers, whatever they are at."""
        tasks = [slot.task for slot in self._slots if slot.task is not None] + list(self._leaving)
        self._slots.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add(self, worker: Worker | None) -> None:
        slot = _Slot()
        self._slots.append(slot)
        slot.task = asyncio.get_running_loop().create_task(self._run(slot, worker))
        slot.task.add_done_callback(_report)

    def _show(self) -> None:
        self._metrics.workers.labels("wanted").set(self.size)
        self._metrics.workers.labels("ready").set(self.ready)

    async def _run(self, slot: _Slot, worker: Worker | None) -> None:
        """A worker after the other, until the slot is removed."""
        while not slot.leaving.is_set():
            if worker is None and (worker := await self._start(slot)) is None:
                return
            slot.is_ready = True
            self._show()
            try:
                await self._serve(slot, worker)
            finally:
                slot.is_ready = False
                self._show()
                await worker.close()
            worker = None

    async def _start(self, slot: _Slot) -> Worker | None:
        """A ready worker, after as many tries as it takes; None where the slot is removed meanwhile."""
        tries = 0
        while True:
            try:
                self._refuse_changed_plugins()
                return await self._same_as_the_others(await Worker.start(self._setup))
            except (PluginError, WorkerDied, OSError) as error:
                pause_s = RESTART_S[min(tries, len(RESTART_S) - 1)]
                tries += 1
                logger.warning(f"a worker could not be started, next try in {pause_s:g} s: {error}")
                try:
                    await asyncio.wait_for(slot.leaving.wait(), pause_s)
                    return None
                except asyncio.TimeoutError:
                    continue

    def _refuse_changed_plugins(self) -> None:
        """A file of other content under the same version would be two rewards in one. Raises `PluginError`."""
        for path, digest in _digests(self._setup.plugins).items():
            if digest != self._plugins[path]:
                raise PluginError(
                    f"{path} was changed since the service started, which serves it as it was: start a service of its"
                    " own for the new one, or put the old file back"
                )

    async def _same_as_the_others(self, worker: Worker) -> Worker:
        """Raises `PluginError` where a package or a model was replaced since the service started: no mixed versions."""
        if worker.offers == self.offers:
            return worker
        await worker.close()
        now, before = (
            ", ".join(f"{one.name} {one.version}" for one in offers)
            for offers in (worker.offers, self.offers)
        )
        raise PluginError(
            f"a new worker has {now}, and the service serves {before}: start a service of its own for it"
        )

    async def _serve(self, slot: _Slot, worker: Worker) -> None:
        """Batches, until the worker ends or the slot is removed."""
        leaving, ended = asyncio.ensure_future(slot.leaving.wait()), asyncio.ensure_future(worker.ended())
        batch: list[Waiting] = []
        try:
            while not leaving.done():
                taking = asyncio.ensure_future(
                    self._queue.take(self._batching.max_rows, self._batching.window_s)
                )
                try:
                    await asyncio.wait({taking, leaving, ended}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    batch = taking.result() if taking.done() else []
                    taking.cancel()
                if ended.done():
                    self._metrics.worker_ends.inc()
                    logger.warning(f"worker {worker.pid} ended while it had nothing to do; it is replaced")
                    self._queue.put_alone(batch)  # it never had them
                    batch = []
                    return
                is_good = not batch or await self._score(worker, batch)
                batch = []
                if not is_good:
                    return
        finally:
            leaving.cancel()
            ended.cancel()
            for waiting in batch:  # the pool is being closed
                waiting.ask.settle(waiting.row, None, "the service was stopped")

    async def _score(self, worker: Worker, batch: list[Waiting]) -> bool:
        """Whether the worker is still good."""
        reward, rows = batch[0].ask.reward, [one.ask.rows[one.row] for one in batch]
        begin_s, limit_s = time.monotonic(), self._batching.limit_s
        try:
            scored = await asyncio.wait_for(worker.score(reward, rows), limit_s)
        except (WorkerDied, asyncio.TimeoutError) as error:
            reason = str(error) if isinstance(error, WorkerDied) else f"it took longer than {limit_s:g} s"
            self._retry_or_settle(batch, reason)
            return False
        self._metrics.batch_s.observe(time.monotonic() - begin_s)
        self._metrics.batch_rows.observe(len(batch))
        self._settle(batch, scored)
        return True

    def _settle(self, batch: list[Waiting], scored: Scores) -> None:
        for at, (one, score) in enumerate(zip(batch, scored.scores, strict=True)):
            fault = scored.faults.get(at, "")
            outcome = "failed" if fault else "unscored" if score is None else "scored"
            self._metrics.rows.labels(one.ask.reward, outcome).inc()
            one.ask.settle(one.row, score, fault)

    def _retry_or_settle(self, batch: list[Waiting], reason: str) -> None:
        self._metrics.worker_ends.inc()
        logger.warning(
            f"{reason}, with {len(batch)} rows of the reward {batch[0].ask.reward}; it is replaced"
        )
        if len(batch) > 1:
            self._queue.put_alone(batch)
            return
        [one] = batch
        self._metrics.rows.labels(one.ask.reward, "failed").inc()
        one.ask.settle(one.row, None, f"the reward was ended on this row: {reason}")


def _digests(paths: Sequence[str]) -> dict[str, str]:
    """Of the files, "" for one that is not there."""
    files = {path: Path(path) for path in paths}
    return {
        path: hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
        for path, file in files.items()
    }


def _report(task: asyncio.Task[None]) -> None:
    """A worker's place never ends by an error; if it does, that is a bug, and seen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a worker's place was lost", exc_info=error)
