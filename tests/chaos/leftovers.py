"""What of a run is there: processes by a mark in their environment, and files in shared memory that they use."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

MARK = "CHAOS_RUN"
SHARED_MEMORY = "/dev/shm/"
GONE_S = 12.0
"""The guardian may take ten seconds after the trainer's end."""


def read(pid: int, name: str) -> bytes:
    """A file about a process; empty where it has ended."""
    try:
        return Path("/proc", str(pid), name).read_bytes()
    except OSError:
        return b""


def session_of(pid: int) -> str:
    """The session that a process is in, '' where it has ended."""
    fields = read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()
    return fields[3] if fields else ""


@dataclass
class Traces:
    """Follows the processes of a run with the mark, and what they put into shared memory.

    Some write over their environment, where their title goes: they are known by the session that they are in.
    """

    mark: str
    _sessions: set[str] = field(default_factory=set)
    _files: set[Path] = field(default_factory=set)

    def processes(self) -> dict[int, list[str]]:
        """Those that live, by number: their command lines."""
        sign = f"{MARK}={self.mark}".encode()
        sessions = {int(entry): session_of(int(entry)) for entry in filter(str.isdigit, os.listdir("/proc"))}
        marked = {pid for pid in sessions if sign in read(pid, "environ").split(b"\0")}
        self._sessions |= {sessions[pid] for pid in marked} - {"", session_of(os.getpid())}
        found = marked | {pid for pid, session in sessions.items() if session in self._sessions}
        words = {pid: read(pid, "cmdline").decode(errors="replace").split("\0") for pid in found}
        return {pid: one for pid, one in words.items() if any(one)}  # a zombie has none

    def look(self) -> dict[int, list[str]]:
        """The processes of now; their files are remembered."""
        processes = self.processes()
        for pid in processes:
            for line in read(pid, "maps").decode(errors="replace").splitlines():
                path = line[line.index(SHARED_MEMORY) :] if SHARED_MEMORY in line else ""
                if path and not path.endswith(" (deleted)"):
                    self._files.add(Path(path))
            self._files.update(Path(SHARED_MEMORY).glob(f"swift-rlx-{os.getuid()}-{pid}-*"))
        return processes

    def left(self, limit_s: float = GONE_S) -> list[str]:
        """What is still there after the end, at most `limit_s` later."""
        deadline = time.monotonic() + limit_s
        while True:
            left = [f"process {pid}: {' '.join(words)}" for pid, words in self.processes().items()]
            left += [str(path) for path in sorted(self._files) if path.exists()]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)
