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


def processes_of(mark: str) -> dict[int, list[str]]:
    """Living processes with the mark, by number: their command lines."""
    sign = f"{MARK}={mark}".encode()
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        if sign in read(int(entry), "environ").split(b"\0"):
            words = read(int(entry), "cmdline").decode(errors="replace").split("\0")
            if any(words):  # a zombie has none
                found[int(entry)] = words
    return found


@dataclass
class Traces:
    """Follows what a run with the mark puts into shared memory."""

    mark: str
    _seen: set[Path] = field(default_factory=set)

    def look(self) -> dict[int, list[str]]:
        """The processes of now; their files are remembered."""
        processes = processes_of(self.mark)
        for pid in processes:
            for line in read(pid, "maps").decode(errors="replace").splitlines():
                path = line[line.index(SHARED_MEMORY) :] if SHARED_MEMORY in line else ""
                if path and not path.endswith(" (deleted)"):
                    self._seen.add(Path(path))
            self._seen.update(Path(SHARED_MEMORY).glob(f"swift-rlx-{os.getuid()}-{pid}-*"))
        return processes

    def left(self, limit_s: float = GONE_S) -> list[str]:
        """What is still there after the end, at most `limit_s` later."""
        deadline = time.monotonic() + limit_s
        while True:
            left = [f"process {pid}: {' '.join(words)}" for pid, words in processes_of(self.mark).items()]
            left += [str(path) for path in sorted(self._seen) if path.exists()]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)
