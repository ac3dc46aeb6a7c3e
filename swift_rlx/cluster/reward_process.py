"""One process that scores, as the trainer sees it: it is asked one thing at a time, and killed where that hangs."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

from swift_rlx.cluster.channel import BrokenMessage, Channel
from swift_rlx.cluster.guardian import MARK, end_group, guardian
from swift_rlx.cluster.launch import check_system, without_ranks
from swift_rlx.cluster.reward_messages import (
    FROM_SCORER,
    Answered,
    Ask,
    Begin,
    FromScorer,
    Load,
    Loaded,
    ToScorer,
    encode_for_scorer,
)
from swift_rlx.rewards.batch import Call
from swift_rlx.rewards.origin import Origin
from swift_rlx.rewards.outcome import Failure, Fault, Outcome

PROGRAM = "swift_rlx.cluster.reward_host"
SILENT_EXIT_S = 2.0
"""How long a process that closed its channel may take to end by itself."""


class CannotLoad(Exception):
    """The reward cannot be loaded in another process; the message is why."""


class RewardProcess:
    """To be started with `launch`. Used from one asyncio loop."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str, channel: Channel[FromScorer]) -> None:
        self.pid = process.pid
        self.is_alive = True
        self._process = process
        self._mark = mark
        self._channel = channel
        self._loaded: set[str] = set()

    @classmethod
    async def launch(cls, environment: Mapping[str, str] | None = None) -> RewardProcess:
        """Start the process; `environment` is laid over ours. Its Python may still be starting: what is asked waits.

        Raises `ConfigError` on a system without pidfds, and in a process of ours.
        """
        check_system()
        ours, theirs = socket.socketpair()
        with theirs:
            channel = await Channel.open(ours, FROM_SCORER, encode_for_scorer)
            mark = f"{os.getpid()}.{secrets.token_hex(8)}"
            try:
                process = _popen(theirs, mark, environment or {})
            except BaseException:
                channel.close()
                raise
            guardian().add_group(process.pid, mark)
            channel.send(Begin(tuple(sys.path)))
            return cls(process, mark, channel)

    def has(self, name: str) -> bool:
        """Whether the reward is loaded there."""
        return name in self._loaded

    async def load(self, name: str, origin: Origin, limit_s: float) -> Failure | None:
        """Have the reward loaded. A process that takes too long for it is killed.

        Returns the failure of a process that ended. Raises `CannotLoad` where the reward is not to be had there.
        """
        answer = await self._ask(Load(name, origin.loader, origin.options), limit_s)
        if isinstance(answer, Failure):
            if answer.fault is Fault.LIMIT:
                raise CannotLoad(f"its import takes longer than {limit_s:g} s")
            return answer
        if not isinstance(answer, Loaded) or answer.error:
            raise CannotLoad(answer.error if isinstance(answer, Loaded) else "it sent another answer")
        self._loaded.add(name)
        return None

    async def attempt(self, name: str, call: Call, limit_s: float) -> Outcome:
        """Call the reward; after `limit_s`, or where this is cancelled, the process is killed.

        Raises `BackendRejected` for arguments that are no plain data; nothing was sent then.
        """
        answer = await self._ask(Ask.of(name, call), limit_s)
        if isinstance(answer, Failure):
            return Outcome(failure=answer)
        if isinstance(answer, Answered):
            return answer.outcome
        await self.kill()
        return Outcome(failure=Failure.process_ended("sent another answer"))

    async def kill(self) -> None:
        """End it with all that it started, whatever it does."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._channel.close()
        await asyncio.shield(asyncio.to_thread(self._end))

    async def _ask(self, message: ToScorer, limit_s: float) -> FromScorer | Failure:
        self._channel.send(message)
        try:
            answer = await asyncio.wait_for(self._channel.receive(), limit_s)
        except (TimeoutError, asyncio.TimeoutError):
            await self.kill()
            return Failure.over_limit(limit_s)
        except BrokenMessage as error:
            await self.kill()
            return Failure.process_ended(f"sent what is no message: {error}")
        except asyncio.CancelledError:
            await self.kill()
            raise
        if answer is None:
            how = await asyncio.to_thread(self._how_it_ended)
            await self.kill()
            return Failure.process_ended(how)
        return answer

    def _end(self) -> None:
        end_group(self.pid, self._mark)
        self._process.wait()
        guardian().forget_group(self.pid, self._mark)

    def _how_it_ended(self) -> str:
        try:
            status = self._process.wait(SILENT_EXIT_S)
        except subprocess.TimeoutExpired:
            return "closed its channel"
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _popen(theirs: socket.socket, mark: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """What the reward prints goes where the trainer's output goes."""
    return subprocess.Popen(
        [sys.executable, "-m", PROGRAM, str(theirs.fileno()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        env={**without_ranks(environment), MARK: mark},
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
    )
