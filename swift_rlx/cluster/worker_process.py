"""A worker process as a rollout backend: starts it, asks it, checks its weights, and starts it again when it died."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from swift_rlx.backends import Capabilities, EngineSpec, GenerationRequest, Health, Probe, WeightFiles
from swift_rlx.cluster.hosted_process import HostedProcess
from swift_rlx.cluster.launch import Launch
from swift_rlx.cluster.messages import (
    AskHealth,
    AskLogprobs,
    Body,
    Generate,
    Generated,
    Logprobs,
    Publish,
    Ready,
    Serving,
    without_columns,
)
from swift_rlx.errors import (
    BackendTimeout,
    BackendUnavailable,
    ConfigError,
    RlxError,
    WeightMismatch,
    WorkerDied,
)
from swift_rlx.types import Completion, FloatArray, IntArray, PolicyVersion

MAX_RESTARTS = 3
RESTART_WINDOW_S = 600.0
"""A worker that died is started again at most `MAX_RESTARTS` times within this many seconds."""

logger = logging.getLogger("swift_rlx")


class WorkerProcess:
    """An engine in a process of its own; an `Engine` itself. Used from one asyncio loop.

    `run_directory`: where its log `<name>.log` goes. `environment`: laid over the trainer's. `start_limit_s`: how long
    it may take until its engine answers. `silence_limit_s`: without a sign of life for that long it is killed.
    `close_grace_s`: how long it may take to end when asked. `probe_difference`: nats, of the last weights that
    came with a probe. `start_number`: how often it was started.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        run_directory: Path,
        name: str = "worker-0",
        environment: Mapping[str, str] | None = None,
        start_limit_s: float = 600.0,
        silence_limit_s: float = 30.0,
        close_grace_s: float = 3.0,
    ) -> None:
        self.name = name
        self.log = run_directory / f"{name}.log"
        self.start_number = 0
        self.probe_difference: float | None = None
        self._launch = Launch(name, spec, self.log, dict(environment or {}), silence_limit_s)
        self._start_limit_s = start_limit_s
        self._close_grace_s = close_grace_s
        self._process: HostedProcess | None = None
        self._ready: Ready | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._restarts: deque[float] = deque()
        self._unchecked: tuple[PolicyVersion, Probe] | None = None

    async def start(self) -> None:
        """Start the process, or a new one where the last one died; return when its engine answers.

        Raises `BackendTimeout` after `start_limit_s`, `WorkerDied` where it ends before, both with the end of its log,
        and an error of this package by which building the engine ended.
        """
        if self._closing is not None:
            raise BackendUnavailable(f"worker '{self.name}' is closed")
        if self._starting is None or (self._starting.done() and not self._is_serving):
            self._starting = asyncio.get_running_loop().create_task(self._start())
        await asyncio.shield(self._starting)

    @property
    def capabilities(self) -> Capabilities:
        """Of its engine; known once it was started."""
        if self._ready is None:
            raise BackendUnavailable(f"worker '{self.name}' was not started: await its `start` first")
        return self._ready.capabilities

    @property
    def pid(self) -> int | None:
        """Of the process; also the number of its group."""
        return None if self._process is None else self._process.pid

    async def generate(self, request: GenerationRequest) -> Completion:
        """The engine's answer. Raises `WorkerDied` where the process ends before, and what the engine raises."""
        answer = await self._call(Generate(without_columns(request)))
        assert isinstance(answer, Generated)
        return replace(answer.completion, worker=self.name)

    async def abort(self, request_ids: Collection[str]) -> None:
        """End these requests soon; unknown ids are ignored."""
        if self._process is not None:
            self._process.abort(tuple(request_ids))

    async def publish(self, version: PolicyVersion, payload: object) -> None:
        """Serve the weights in these files, and show by their probe that it does.

        Raises `WeightMismatch` where the engine's log-probs of the probe are not those of the weights.
        """
        if not isinstance(payload, WeightFiles):
            raise ConfigError(
                f"weights {version} are refused: worker processes take WeightFiles, not {payload!r}"
            )
        self._unchecked = None if payload.probe is None else (version, payload.probe)
        await self._call(Publish(version, replace(payload, probe=None)))
        await self._check_probe()

    async def health(self) -> Health:
        """The version that it serves. Where the process has died, a new one is started first.

        Raises `WorkerDied` where it died too often, and what `start` raises.
        """
        await self._renew()
        answer = await self._call(AskHealth())
        assert isinstance(answer, Serving)
        if self._unchecked is not None and self._unchecked[0] == answer.version:
            await self._check_probe()  # who published did not wait for it
        return Health(answer.version)

    async def logprobs(self, token_ids: IntArray) -> FloatArray:
        """Log-probs of a text under the weights that new requests get, [T - 1]."""
        answer = await self._call(AskLogprobs(token_ids))
        assert isinstance(answer, Logprobs)
        return answer.values

    async def close(self) -> None:
        """Ask the process to end, kill it after the grace; nothing of it is left. May be called twice."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _call(self, body: Body) -> object:
        if self._closing is not None:
            raise BackendUnavailable(f"worker '{self.name}' is closed")
        if self._process is None:
            raise BackendUnavailable(f"worker '{self.name}' was not started: await its `start` first")
        if self._process.is_alive and not self._process.ready.done():
            raise BackendUnavailable(f"worker '{self.name}' is being started: it is {self._process.doing}")
        return await self._process.call(body)

    async def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.start_number += 1
        self._unchecked = None
        process = self._process = await HostedProcess.launch(self._launch)
        try:
            self._ready = await asyncio.wait_for(asyncio.shield(process.ready), self._start_limit_s)
        except (TimeoutError, asyncio.TimeoutError):
            if process.ready.done():
                raise
            late = BackendTimeout(
                f"worker '{self.name}' was not ready within {self._start_limit_s:g} s, while it was"
                f" {process.doing}; {process.tail()}"
            )
            await process.close(0.0)
            raise late from None
        except RlxError:
            await asyncio.wait({process.ended})
            raise
        logger.info(
            f"worker '{self.name}' is ready: process {process.pid}, {self._ready.note}, log {self.log}"
        )

    @property
    def _is_serving(self) -> bool:
        process = self._process
        return process is not None and process.is_alive and process.ready.done()

    async def _renew(self) -> None:
        """Start a new process where the last one died; one that starts already is waited for."""
        if self._process is None or self._starting is None or self._is_serving:
            return
        if self._starting.done():
            now = time.monotonic()
            while self._restarts and now - self._restarts[0] > RESTART_WINDOW_S:
                self._restarts.popleft()
            error = self._starting.exception() or self._process.death()
            if len(self._restarts) == MAX_RESTARTS:
                raise WorkerDied(
                    f"worker '{self.name}' was started again {MAX_RESTARTS} times within {RESTART_WINDOW_S:g} s,"
                    f" which is the limit; the last time: {error}"
                )
            self._restarts.append(now)
            logger.warning(f"worker '{self.name}' is started again: {error}")
        await self.start()

    async def _check_probe(self) -> None:
        if self._unchecked is None:
            return
        version, probe = self._unchecked
        served = await self.logprobs(probe.token_ids)
        fits = served.shape == probe.logprobs.shape
        self.probe_difference = probe.difference(served) if fits else float("inf")
        if self.probe_difference > probe.tolerance:
            raise WeightMismatch(
                f"worker '{self.name}' does not serve the weights {version} that it took: its log-probs of the probe"
                f" differ by {self.probe_difference:.3g} nats, {probe.tolerance:g} are allowed"
            )
        self._unchecked = None

    async def _close(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._process is not None:
            await self._process.close(self._close_grace_s)
