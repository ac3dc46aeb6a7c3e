"""One worker process of a reward service, as the service sees it."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys

from swift_rlx.cluster.guardian import MARK, end_group, guardian
from swift_rlx.errors import PluginError, WorkerDied
from swift_rlx.reward_service.frames import Ready, Scores, Setup, Task, Unfit, framed, read
from swift_rlx.reward_service.wire import Offer, Row

START_LIMIT_S = 300.0
"""How long importing and building the rewards may take: reward models are large."""


class Worker:
    """Made by `start`; whatever ends it, `close` has to be called. Used from one asyncio loop."""

    def __init__(self, process: asyncio.subprocess.Process, mark: str, ours: socket.socket) -> None:
        self.pid = process.pid
        self.offers: tuple[Offer, ...] = ()
        self._process = process
        self._mark = mark
        self._socket = ours
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    async def start(cls, setup: Setup) -> Worker:
        """A worker that is ready to score.

        Raises `PluginError` where the rewards cannot be built, and `WorkerDied` where the process ends or is silent.
        """
        ours, theirs = socket.socketpair()
        mark = secrets.token_hex(8)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "swift_rlx.reward_service.worker_program"),
                *(str(theirs.fileno()), str(os.getpid())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, MARK: mark},
                start_new_session=True,
            )
        guardian().add_group(process.pid, mark)
        worker = cls(process, mark, ours)
        try:
            await asyncio.wait_for(worker._get_ready(setup), START_LIMIT_S)
        except asyncio.TimeoutError:
            await worker.close()
            raise WorkerDied(f"a worker was not ready to score within {START_LIMIT_S:g} s") from None
        except BaseException:
            await worker.close()
            raise
        return worker

    async def score(self, reward: str, rows: list[Row]) -> Scores:
        """Raises `WorkerDied` where the process ends, or answers with what is no answer."""
        try:
            message = framed(Task(reward, rows))
        except (OverflowError, TypeError, ValueError) as error:  # such as a number of more than 64 bits
            reason = f"the batch cannot be sent to a worker: {error}"
            return Scores([None] * len(rows), dict.fromkeys(range(len(rows)), reason))
        answer = await self._ask(message)
        if not isinstance(answer, Scores) or len(answer.scores) != len(rows):
            raise WorkerDied(f"worker {self.pid} did not answer with {len(rows)} scores")
        return answer

    async def ended(self) -> None:
        """Returns when the process has ended, by whatever."""
        await self._process.wait()

    async def close(self) -> None:
        """End the process, with all that it started."""
        if self._writer is None:
            self._socket.close()
        else:
            self._writer.transport.abort()
        await asyncio.to_thread(end_group, self.pid, self._mark)
        await self._process.wait()
        guardian().forget_group(self.pid, self._mark)

    async def _get_ready(self, setup: Setup) -> None:
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        answer = await self._ask(framed(setup))
        if isinstance(answer, Unfit):
            raise PluginError(f"the rewards cannot be served: {answer.reason}")
        if not isinstance(answer, Ready):
            raise WorkerDied(f"worker {self.pid} did not say that it is ready")
        self.offers = answer.offers

    async def _ask(self, message: bytes) -> Ready | Unfit | Scores:
        assert self._reader is not None
        assert self._writer is not None
        self._writer.write(message)
        try:
            await self._writer.drain()
            return await read(self._reader)
        except (EOFError, ConnectionError) as error:
            raise WorkerDied(f"worker {self.pid} ended") from error
