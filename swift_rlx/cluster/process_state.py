"""What the system says of processes: whether one is stopped, so that it exists and does nothing, and its memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

STOPPED_S = 5.0
"""A worker that is stopped for that long does not serve, whoever stopped it."""


def is_stopped(process: int) -> bool:
    """Whether a signal has stopped it (SIGSTOP and the like). False for one that is gone."""
    return _read(Path("/proc", str(process), "stat")).rpartition(")")[2].split()[:1] == ["T"]


def stopped_descendant(process: int) -> int | None:
    """One of its children, of theirs, and so on, that a signal has stopped; None: there is none."""
    for child in _children(process):
        if is_stopped(child):
            return child
        if (found := stopped_descendant(child)) is not None:
            return found
    return None


async def descendant_stopped_for(process: int, limit_s: float) -> int:
    """Wait until some descendant has been stopped for so long, by our own ticks: we may have been stopped with it."""
    tick_s, ticks, found = limit_s / 4, 0, None
    while found is None or ticks * tick_s < limit_s:
        await asyncio.sleep(tick_s)
        found = stopped_descendant(process)
        ticks = 0 if found is None else ticks + 1
    return found


def resident_mib() -> int:
    """Memory of this process, in MiB."""
    pages = int(_read(Path("/proc/self/statm")).split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def _children(process: int) -> list[int]:
    """None on a system that does not list them, and of a process that is gone."""
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:
        return []
    lists = (_read(Path("/proc", str(process), "task", thread, "children")) for thread in threads)
    return [int(child) for one in lists for child in one.split()]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
