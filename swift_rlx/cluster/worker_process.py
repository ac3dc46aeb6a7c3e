"""A worker process as a rollout backend: starts it, asks it, checks its weights, and starts it again when it died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from swift_rlx.backends import (
    Capabilities,
    EngineSpec,
    GenerationRequest,
    Health,
    OnProgress,
    Probe,
    WeightFiles,
    unwatched,
)
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
from swift_rlx.cluster.probe_trail import ProbeTrail
from swift_rlx.cluster.stall_limit import FLOOR_S
from swift_rlx.errors import (
    BackendTimeout,
    BackendUnavailable,
    ConfigError,
    RlxError,
    WeightMismatch,
    WorkerAbsent,
    WorkerDied,
    WorkerLost,
)
from swift_rlx.types import Completion, FloatArray, IntArray, PolicyVersion

MAX_STARTS_IN_VAIN = 5
"""A worker that died is started again, unless so many starts in a row have ended without an answer."""
LOST_S = 600.0
"""After that time one that was given up is tried once more."""
RESTART_FACTOR = 3.0
MIN_RESTART_S = 60.0
"""A start after the first may take `RESTART_FACTOR` times as long as that one did, and at least so many seconds."""
SLOWEST_BYTES_PER_S = 200e6
"""At which an engine takes weights, beside `PUBLISH_SHARE` of the time that it may be without a word at most;
`FLOOR_SHARE` is what that becomes once it has answered something."""
PUBLISH_SHARE = 5 / 9
FLOOR_SHARE = 1 / 3
"""25 and 15 of 45 s, so that an engine that hangs is replaced within a minute on a CPU."""
STALL_LIMIT_S = 45.0
STALL_LIMIT_ON_CPU_S = 300.0
"""How long an engine may be without a word. It has one between two steps, and on a CPU a step may take minutes."""

logger = logging.getLogger("swift_rlx")


class WorkerProcess:
    """An engine in a process of its own; an `Engine` itself. Used from one asyncio loop.

    `run_directory`: where its log `<name>.log` goes. `environment`: laid over the trainer's. `start_limit_s`: how long
    it may take until its engine answers. `silence_limit_s`: without a sign of life for that long it is killed.
    `stall_limit_s`: so is it where its engine has requests and is without a word for that long, or for less once it
    has answered something (`stall_limit.py`); by default more on a CPU. `close_grace_s`: how long it may take to end
    when asked. `probe_difference`: nats, of the last weights that came with a probe. `start_number`: how often it was
    started.

    Where the process has ended, or a new one is not ready, every call raises `WorkerAbsent`; `health` starts a new one.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        run_directory: Path,
        name: str = "worker-0",
        environment: Mapping[str, str] | None = None,
        start_limit_s: float = 600.0,
        silence_limit_s: float = 25.0,
        stall_limit_s: float | None = None,
        close_grace_s: float = 3.0,
    ) -> None:
        self.name = name
        self.log = run_directory / f"{name}.log"
        self.start_number = 0
        self.probe_difference: float | None = None
        stall_limit_s = stall_limit_s or (STALL_LIMIT_S if spec.devices else STALL_LIMIT_ON_CPU_S)
        limits = silence_limit_s, stall_limit_s, max(FLOOR_S, FLOOR_SHARE * stall_limit_s)
        self._launch = Launch(name, spec, self.log, dict(environment or {}), *limits)
        self._start_limit_s = start_limit_s
        self._close_grace_s = close_grace_s
        self._process: HostedProcess | None = None
        self._ready: Ready | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._starts_in_vain = 0
        self._last_start_s = 0.0
        self._has_published = self._needs_weights = False
        self._trail = ProbeTrail()
        self._unchecked: tuple[PolicyVersion, Probe] | None = None

    async def start(self) -> None:
        """Start the process, or a new one where the last one died; return when its engine answers.

        Raises `BackendTimeout` after `start_limit_s`, `WorkerDied` where it ends before, both with the end of its log,
        and an error of this package by which building the engine ended.
        """
        if self._closing is not None:
            raise BackendUnavailable(f"worker '{self.name}' is closed")
        if self._starting is None or (self._starting.done() and not self._is_serving):
            self._begin_start()
        assert self._starting is not None
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

    async def generate(self, request: GenerationRequest, on_progress: OnProgress = unwatched) -> Completion:
        """The engine's answer. Raises `WorkerDied` where the process ends before, and what the engine raises."""
        if self._needs_weights:
            raise WorkerAbsent(f"worker '{self.name}' was started again and waits for its weights")
        try:
            answer = await self._call(Generate(without_columns(request)), on_progress)
        except WorkerDied:
            if request.is_suspect:
                self._starts_in_vain = max(self._starts_in_vain - 1, 0)
            raise
        self._starts_in_vain = 0
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
        limit_s = PUBLISH_SHARE * self._launch.stall_limit_s + _size(payload) / SLOWEST_BYTES_PER_S
        check = self._unchecked = None if payload.probe is None else (version, payload.probe)
        self._has_published = True
        await self._call(Publish(version, replace(payload, probe=None), limit_s))
        self._needs_weights = False
        if check is not None:
            await self._check_probe(check)

    async def health(self) -> Health:
        """The version that it serves. Raises `WorkerAbsent` where it has died, and begins to start a new process.

        Raises `WorkerLost` where that is not worth it any more.
        """
        if self._closing is None and not self._is_serving:
            self._renew()
        answer = await self._call(AskHealth())
        assert isinstance(answer, Serving)
        if self._unchecked is not None and self._unchecked[0] == answer.version:
            await self._check_probe(self._unchecked)  # who published did not wait for it
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

    async def _call(self, body: Body, on_progress: OnProgress = unwatched) -> object:
        if self._closing is not None:
            raise BackendUnavailable(f"worker '{self.name}' is closed")
        if self._process is None:
            raise BackendUnavailable(f"worker '{self.name}' was not started: await its `start` first")
        if not self._process.is_alive:
            raise WorkerAbsent(str(self._process.death()))
        if not self._process.ready.done():
            raise WorkerAbsent(f"worker '{self.name}' is being started: it is {self._process.doing}")
        return await self._process.call(body, on_progress)

    def _begin_start(self) -> None:
        loop = asyncio.get_running_loop()
        self._starts_in_vain += 1
        self._last_start_s = loop.time()
        self._starting = loop.create_task(self._start())
        self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.start_number += 1
        if self._process is not None and self._process.has_stalled:
            self._launch = replace(self._launch, stall_floor_s=2 * self._launch.stall_floor_s)
        self._unchecked, self._needs_weights = None, self._has_published
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
            await process.wait_end()
            raise
        took_s = asyncio.get_running_loop().time() - self._last_start_s
        if self.start_number == 1:
            self._start_limit_s = min(self._start_limit_s, max(RESTART_FACTOR * took_s, MIN_RESTART_S))
        logger.info(
            f"worker '{self.name}' is ready after {took_s:.1f} s: process {process.pid}, {self._ready.note},"
            f" log {self.log}"
        )

    @property
    def _is_serving(self) -> bool:
        process = self._process
        return process is not None and process.is_alive and process.ready.done()

    def _renew(self) -> None:
        """Begin to start a new process where the last one has ended."""
        if self._process is None or self._starting is None or not self._starting.done():
            return
        error = self._starting.exception() or self._process.death()
        waited_s = asyncio.get_running_loop().time() - self._last_start_s
        if self._starts_in_vain >= MAX_STARTS_IN_VAIN and waited_s < LOST_S:
            raise WorkerLost(
                f"worker '{self.name}' was started {self._starts_in_vain} times in a row without giving an answer, and"
                f" is not started again; the last time: {error}"
            )
        logger.warning(f"worker '{self.name}' is started again: {error}")
        self._begin_start()

    async def _check_probe(self, check: tuple[PolicyVersion, Probe]) -> None:
        version, probe = check
        served = await self.logprobs(probe.token_ids)
        if self._unchecked is not check:
            return  # other weights were published meanwhile
        fits = served.shape == probe.logprobs.shape
        self.probe_difference = probe.difference(served) if fits else float("inf")
        what = f"worker '{self.name}' does not serve the weights {version} that it took: its log-probs of the probe"
        if self.probe_difference > probe.tolerance:
            raise WeightMismatch(
                f"{what} differ by {self.probe_difference:.3g} nats, {probe.tolerance:g} are allowed"
            )
        if self._trail.stays_behind(probe, served):
            raise WeightMismatch(f"{what} stay where they were, and the trainer's have moved")
        self._unchecked = None

    async def _close(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._process is not None:
            await self._process.close(self._close_grace_s)


def _size(files: WeightFiles) -> int:
    try:
        return sum(path.stat().st_size for path in Path(files.directory).iterdir())
    except OSError as error:
        raise BackendUnavailable(f"weights in {files.directory} cannot be read: {error}") from error
