"""How a worker process is started: its command, its environment, and the file for what it prints."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from swift_rlx.backends import EngineSpec
from swift_rlx.cluster.guardian import MARK
from swift_rlx.cluster.stall_limit import FLOOR_S
from swift_rlx.errors import ConfigError

TAIL_LINES = 20
TAIL_BYTES = 4000
RANKS_ONLY = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
}
RANKS_ONLY_PREFIXES = ("TORCHELASTIC_", "ACCELERATE_", "FSDP_")
"""Environment variables that tell the trainer's ranks who they are; a worker would try to join them."""


@dataclass(frozen=True)
class Launch:
    """How a worker is started. `environment` is laid over that of the trainer.

    `silence_limit_s`: how long the process may give no sign of life; `stall_limit_s`: its engine, with requests on it;
    `stall_floor_s`: the least that this becomes once the engine has answered something.
    """

    name: str
    spec: EngineSpec
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    silence_limit_s: float = 25.0
    stall_limit_s: float = 45.0
    stall_floor_s: float = FLOOR_S

    def popen(self, theirs: socket.socket, mark: str) -> subprocess.Popen[bytes]:
        """The process, with its end of the channel."""
        descriptor = theirs.fileno()
        module = "swift_rlx.cluster.host"
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, str(descriptor), self.name, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**without_ranks(self.environment), MARK: mark},
                pass_fds=(descriptor,),
                start_new_session=True,
            )

    def log_size(self) -> int:
        """Bytes in the log now; what a new process prints comes after them."""
        return self.log.stat().st_size if self.log.exists() else 0

    def log_tail(self, begin: int) -> str:
        """The last lines that were written after position `begin`."""
        try:
            with self.log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(begin, end - TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError as error:
            return f"({error})"
        return "\n".join(text.strip().splitlines()[-TAIL_LINES:]) or "(empty)"


def check_system() -> None:
    """Raise `ConfigError` in a worker process, and where the end of a process cannot be waited for."""
    if MARK in os.environ:
        raise ConfigError(
            "a worker process was about to start workers: the module that its engine or loader comes from starts a"
            ' pipeline when it is imported; put that under `if __name__ == "__main__":`'
        )
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:
        raise ConfigError(
            f"worker processes are refused: this system has no pidfds ({error}); they need Linux 5.3 or later, and a"
            " container that allows pidfd_open"
        ) from error


def without_ranks(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that joins no group of ranks: ours without `RANKS_ONLY`, and with `changes`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in RANKS_ONLY and not name.startswith(RANKS_ONLY_PREFIXES)
    }
    return {**kept, "PYTHONUNBUFFERED": "1", **changes}
