"""The program of a process that scores: it answers one question after the other, in its main thread.

So a reward may set alarms, as math-verify does. It ends with its channel, and with the trainer in any case.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any

from swift_rlx.cluster.reward_messages import (
    TO_SCORER,
    Answered,
    Ask,
    Begin,
    FromScorer,
    Load,
    Loaded,
    encode_for_scorer,
)
from swift_rlx.cluster.trainer_watch import end_after
from swift_rlx.registry import one_line
from swift_rlx.rewards.outcome import attempt

_LENGTH = struct.Struct(">Q")


class RewardHost:
    """Rewards by name, and the answers to what is asked of them."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def answer(self, message: Begin | Load | Ask) -> FromScorer | None:
        """What is sent back; None: nothing."""
        if isinstance(message, Begin):
            sys.path.extend(path for path in message.sys_path if path not in sys.path)
            return None
        return self._load(message) if isinstance(message, Load) else self._ask(message)

    def _load(self, message: Load) -> Loaded:
        try:
            self._functions[message.name] = message.origin.load().build()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - code of others is imported here
            traceback.print_exc()
            return Loaded(one_line(error))
        return Loaded()

    def _ask(self, message: Ask) -> Answered:
        outcome = attempt(self._functions[message.name], message.call)
        return Answered(outcome.values, outcome.refusal, outcome.failure)


def serve(connection: socket.socket) -> None:
    """Until the other side is gone; a trainer that is killed resets the connection, with a question half asked."""
    host = RewardHost()
    with contextlib.suppress(ConnectionError), connection.makefile("rb") as stream:
        while len(head := stream.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            if len(question := stream.read(length)) < length:
                return
            answer = host.answer(TO_SCORER.decode(question))
            if answer is not None:
                data = encode_for_scorer(answer)
                connection.sendall(_LENGTH.pack(len(data)) + data)


def main() -> None:
    """The program: the number of the connection, and the trainer's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer ends it
    descriptor, trainer = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(descriptor, False)
    end_after(trainer)
    serve(socket.socket(fileno=descriptor))


if __name__ == "__main__":
    main()
