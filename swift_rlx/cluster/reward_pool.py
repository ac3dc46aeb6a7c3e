"""Processes that score: as many as there are places, each with any of the run's rewards, all of them replaceable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from swift_rlx.cluster.reward_process import CannotLoad, RewardProcess
from swift_rlx.errors import BackendRejected
from swift_rlx.rewards.batch import Call
from swift_rlx.rewards.execution import Execution
from swift_rlx.rewards.origin import Origin
from swift_rlx.rewards.outcome import Failure, Outcome

logger = logging.getLogger("swift_rlx")
START_LIMIT_S = 300.0
"""How long Python and the import of a reward may take; it counts for no row."""


class RewardPool:
    """`size` calls at a time. Used from one asyncio loop.

    A process is started when a call finds none idle, and one that was killed is replaced at once, so that there are as
    many again. `environment` is laid over the trainer's. `rewards`: how many share the pool; of `size` places at least
    as many, no reward takes the last place of another, so that one that hangs keeps nobody else waiting.
    """

    def __init__(
        self,
        size: int,
        environment: Mapping[str, str] | None = None,
        start_limit_s: float = START_LIMIT_S,
        rewards: int = 1,
    ) -> None:
        self.size = size
        self._environment = {"OMP_NUM_THREADS": "1", **(environment or {})}
        self._start_limit_s = start_limit_s
        self._places = asyncio.Semaphore(size)
        self._share = max(size - rewards + 1, 1)
        self._shares: dict[str, asyncio.Semaphore] = {}
        self._idle: list[RewardProcess] = []
        self._busy: set[RewardProcess] = set()
        self._is_closing = False

    @property
    def pids(self) -> frozenset[int]:
        """Of its living processes."""
        return frozenset(one.pid for one in (*self._idle, *self._busy) if one.is_alive)

    async def run(self, name: str, origin: Origin, call: Call, limit_s: float) -> Outcome:
        """A call of the reward; waits for a place.

        Raises `CannotLoad`, and `BackendRejected` for arguments that are no plain data.
        """
        share = self._shares.setdefault(name, asyncio.Semaphore(self._share))
        async with share, self._process() as process:
            failure = await self._load(process, name, origin)
            if failure is not None:
                return Outcome(failure=failure)
            return await process.attempt(name, call, limit_s)

    async def warm_up(self, name: str, origin: Origin) -> None:
        """Have the reward loaded in one process. Raises `CannotLoad`."""
        async with self._process() as process:
            await self._load(process, name, origin)

    async def close(self) -> None:
        """End all processes; who waits for them has to be cancelled before. A later call starts new ones."""
        self._is_closing = True
        ended, self._idle = [*self._idle, *self._busy], []
        await asyncio.gather(*(process.kill() for process in ended))

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[RewardProcess]:
        """One that is idle, the one that was used last, or a new one."""
        async with self._places:
            self._is_closing = False
            process = self._idle.pop() if self._idle else await RewardProcess.launch(self._environment)
            self._busy.add(process)
            try:
                yield process
            finally:
                await self._give_back(process)

    async def _load(self, process: RewardProcess, name: str, origin: Origin) -> Failure | None:
        return None if process.has(name) else await process.load(name, origin, self._start_limit_s)

    async def _give_back(self, process: RewardProcess) -> None:
        self._busy.discard(process)
        if process.is_alive:
            self._idle.append(process)
        elif not self._is_closing:
            self._idle.append(await RewardProcess.launch(self._environment))


@dataclass
class ProcessExecution:
    """A reward in the processes of a pool. Where it cannot be, it goes to `fall_back` for good, with a warning."""

    name: str
    origin: Origin
    pool: RewardPool
    fall_back: Callable[[], Execution]
    _instead: Execution | None = None

    async def run(self, call: Call, limit_s: float) -> Outcome:
        """Raises what the fall-back raises."""
        if self._instead is None:
            try:
                return await self.pool.run(self.name, self.origin, call, limit_s)
            except (CannotLoad, BackendRejected) as error:
                self._leave_processes(error)
        assert self._instead is not None
        return await self._instead.run(call, limit_s)

    async def warm_up(self) -> None:
        """Have it loaded, or fall back. Raises PluginError where it cannot be constructed here either."""
        try:
            await self.pool.warm_up(self.name, self.origin)
        except CannotLoad as error:
            self._leave_processes(error)

    def _leave_processes(self, error: Exception) -> None:
        if self._instead is None:
            self._instead = self.fall_back()
            logger.warning(
                f"the reward {self.name} scores in a thread of the trainer, where a call that hangs cannot be ended:"
                f" another process cannot run it ({error})"
            )

    def close(self) -> None:
        """The pool is closed by its owner."""
        if self._instead is not None:
            self._instead.close()
