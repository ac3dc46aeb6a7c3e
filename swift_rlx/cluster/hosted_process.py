"""One worker process from its start to its end, as the trainer sees it.

Its end is noticed through its pidfd; that it hangs, by its silence, the sooner where it is stopped. Either way every
call that waits gets `WorkerDied` with the end of the log, once; then its process group is killed, with what it left in
shared memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from typing import Any

from swift_rlx.backends import OnProgress, unwatched
from swift_rlx.cluster.channel import BrokenMessage, Channel
from swift_rlx.cluster.guardian import end_group, guardian
from swift_rlx.cluster.launch import Launch, check_system
from swift_rlx.cluster.messages import (
    BEAT_S,
    FROM_WORKER,
    Abort,
    Answer,
    Beat,
    Body,
    Call,
    Cancel,
    Close,
    Dying,
    FromWorker,
    Generate,
    Progress,
    Ready,
    Reply,
    Start,
)
from swift_rlx.cluster.process_state import STOPPED_S, is_stopped
from swift_rlx.errors import BackendError, EngineStalled, RlxError, WorkerDied

LAST_WORDS_S = 0.3
"""How long messages of an ended process may still be on their way."""
END_S = 10.0
"""How long a process that was killed may take to end; who waits for it goes on then."""
EXIT_S = 2.0
"""How long a process that closed its channel may take to end."""


logger = logging.getLogger("swift_rlx")


class HostedProcess:
    """To be started with `launch`. Used from one asyncio loop."""

    def __init__(
        self,
        launch: Launch,
        process: subprocess.Popen[bytes],
        mark: str,
        channel: Channel[FromWorker],
        log_begin: int,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.pid = process.pid
        self.doing = "starting Python"
        self.ready: asyncio.Future[Ready] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done once its group is gone."""
        self._launch = launch
        self._process = process
        self._mark = mark
        self._channel = channel
        self._log_begin = log_begin
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._listeners: dict[int, OnProgress] = {}
        self._reason: str | None = None
        self._last_words: Dying | None = None
        self._silent_s = 0.0
        self._is_closing = False
        self._heard_all = asyncio.Event()
        self._killing: asyncio.Future[None] | None = None
        self._pidfd = os.pidfd_open(process.pid)
        loop.add_reader(self._pidfd, self._exited)
        self._tasks = [loop.create_task(self._listen()), loop.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    @classmethod
    async def launch(cls, launch: Launch) -> HostedProcess:
        """Start the process; `ready` tells when it can be asked.

        Raises `ConfigError` on a system without pidfds, `BackendRejected` for a description that is no plain data.
        """
        check_system()
        ours, theirs = socket.socketpair()
        with theirs:
            channel = await Channel.open(ours, FROM_WORKER)  # the last wait: from here on, nothing gets lost
            log_begin = launch.log_size()
            mark = f"{os.getpid()}.{secrets.token_hex(8)}"
            try:
                # What cannot travel is refused here, before there is a process that nobody knows.
                limits = launch.stall_limit_s, launch.stall_floor_s
                channel.send(Start(launch.spec, tuple(sys.path), *limits))
                process = launch.popen(theirs, mark)
            except BaseException:
                channel.close()
                raise
            guardian().add_group(process.pid, mark)
            return cls(launch, process, mark, channel, log_begin)

    @property
    def is_alive(self) -> bool:
        """Whether it can still answer."""
        return self._reason is None

    @property
    def has_stalled(self) -> bool:
        """Whether its engine was ended for its silence."""
        return self._last_words is not None and self._last_words.error.kind == EngineStalled.__name__

    async def call(self, body: Body, on_progress: OnProgress = unwatched) -> Answer:
        """The answer. Raises what the engine raised, or `WorkerDied`; a call that is cancelled is cancelled there."""
        if self._reason is not None:
            raise self.death()
        number = next(self._numbers)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._channel.send(Call(number, body))
        self._pending[number], self._listeners[number] = answer, on_progress
        try:
            return await answer
        except asyncio.CancelledError:
            if isinstance(body, Generate) and self.is_alive:
                self._channel.send(Cancel(number))
            raise
        finally:
            del self._pending[number], self._listeners[number]

    def abort(self, request_ids: tuple[str, ...]) -> None:
        """Tell it to end these requests."""
        if self.is_alive:
            self._channel.send(Abort(request_ids))

    async def close(self, grace_s: float) -> None:
        """Ask it to end, wait that long, then kill it with its group."""
        self._is_closing = True
        if self.is_alive and self.ready.done():
            asking = asyncio.ensure_future(self.call(Close()))
            either: set[asyncio.Future[Any]] = {asking, self.ended}
            await asyncio.wait(either, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and asking.exception() is None:
                await asyncio.wait({self.ended}, timeout=grace_s)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        self.kill("was closed")
        await self.wait_end()

    async def wait_end(self) -> None:
        """Return when the killed group is gone, or cannot be ended."""
        await asyncio.wait({self.ended}, timeout=END_S)
        if not self.ended.done():
            logger.error(
                f"process {self.pid} of worker '{self._launch.name}' was killed {END_S:g} s ago and does not end: it"
                " waits inside the system, most likely for a device, which may need a reset; what it holds stays taken"
            )

    def kill(self, reason: str) -> None:
        """End it now with its group; what waits for it gets `WorkerDied` with this reason."""
        self._fail(reason)
        if self._killing is None and not self.ended.done():
            self._killing = asyncio.ensure_future(asyncio.to_thread(end_group, self.pid, self._mark))

    def death(self) -> RlxError:
        """Why it cannot answer, with the end of its log. An error of ours that broke its start is that error."""
        if self._last_words is None:
            what = f"worker '{self._launch.name}' (process {self.pid}) {self._reason}"
        else:
            error = self._last_words.error.error(self._launch.name)
            if not isinstance(error, BackendError):
                return error
            what = str(error)
        return WorkerDied(f"{what}; {self.tail()}")

    def tail(self) -> str:
        """The last lines of its log."""
        return f"the end of its log {self._launch.log}:\n{self._launch.log_tail(self._log_begin)}"

    def _fail(self, reason: str) -> None:
        """It cannot answer any more; the first reason counts."""
        if self._reason is not None:
            return
        self._reason = reason
        everybody: list[asyncio.Future[Any]] = [self.ready, *self._pending.values()]
        for waiting in everybody:
            if not waiting.done():
                waiting.set_exception(self.death())
        self.ready.exception()  # somebody may have stopped waiting for it

    async def _listen(self) -> None:
        try:
            while (message := await self._channel.receive()) is not None:
                self._silent_s = 0.0
                self._take(message)
        except BrokenMessage as error:
            self.kill(f"sent what is no message: {error}")
        self._heard_all.set()
        if not self._is_closing:
            await asyncio.wait({self.ended}, timeout=EXIT_S)
            self.kill("closed its channel")

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, Beat):
            self.doing = message.doing or self.doing
        elif isinstance(message, Ready):
            if not self.ready.done():
                self.ready.set_result(message)
        elif isinstance(message, Dying):
            self._last_words = message
            self.kill("lost its engine")
        elif isinstance(message, Progress):
            for number, chunk in message.answers:
                if (waiting := self._pending.get(number)) is not None and not waiting.done():
                    self._listeners[number](chunk)
        elif (answer := self._pending.get(message.number)) is not None and not answer.done():
            if isinstance(message, Reply):
                answer.set_result(message.body)
            else:
                answer.set_exception(message.error.error(self._launch.name))

    async def _watch(self) -> None:
        """Count silence by our own ticks: a trainer that was stopped itself must not blame its workers."""
        loop, limit_s = asyncio.get_running_loop(), self._launch.silence_limit_s
        tick_s, last = min(BEAT_S, limit_s / 4), loop.time()
        while self.is_alive:
            await asyncio.sleep(tick_s)
            now = loop.time()
            self._silent_s += min(now - last, 2 * tick_s)
            last = now
            if not self.ready.done():
                self._silent_s = (
                    0.0  # a big import may hold the interpreter; the start has a limit of its own
                )
            elif self._silent_s > limit_s:
                self.kill(f"gave no sign of life for {limit_s:g} s and was killed")
            elif self._silent_s > STOPPED_S and is_stopped(self.pid):
                self.kill(f"was stopped for {STOPPED_S:g} s and was killed")

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Nobody listens or watches any more: by a bug of ours, or of who listens to progress."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.kill(f"was killed after {type(error).__name__}: {error}")
            raise error

    def _exited(self) -> None:
        """Its process has ended, and is still a zombie, so that nobody else gets its number."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        self._tasks.append(loop.create_task(self._bury()))

    async def _bury(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(self._heard_all.wait(), LAST_WORDS_S)
        self._fail(_how_it_ended(self.pid))
        await (self._killing or asyncio.to_thread(end_group, self.pid, self._mark))
        self._process.wait()
        guardian().forget_group(self.pid, self._mark)
        os.close(self._pidfd)
        self._channel.close()
        self.ended.set_result(None)


def _how_it_ended(process: int) -> str:
    try:
        status = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        status = None
    if status is None:
        return "ended"
    if status.si_code == os.CLD_EXITED:
        return f"ended with status {status.si_status}"
    return f"was ended by {signal.Signals(status.si_status).name}"
