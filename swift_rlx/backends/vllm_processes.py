"""The processes of a running vLLM engine, and word of the end of one of them.

    worker process (ours) -> VLLM::EngineCore -> VLLM::Worker, one a device

vLLM notices a dead process itself, but seconds later; the operating system says it at once. One that is stopped is as
good as dead after a while, which vLLM does not notice at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter

TITLE = "VLLM::"
LOOK_S = 1.0
LOOKS_STOPPED = 5
"""Seconds between two looks at the processes, and how many of these in a row may find one stopped."""


def engine_processes() -> dict[int, str]:
    """Process ids of vLLM's processes below this one, and their titles."""
    import psutil

    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline()).strip()
            if title.startswith(TITLE):
                found[process.pid] = title
    return found


class ProcessWatch:
    """Completes `ended` with a sentence when one of the processes has ended. Used from one asyncio loop."""

    def __init__(self, processes: dict[int, str]) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._descriptors: list[int] = []
        self._processes = processes
        self._times_stopped: Counter[int] = Counter()
        self._timer = self._loop.call_later(LOOK_S, self._look)
        for pid, title in processes.items():
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                self._end(pid, title)
                continue
            self._descriptors.append(descriptor)
            self._loop.add_reader(descriptor, self._end, pid, title)

    def close(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        self._descriptors.clear()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        for pid, title in self._processes.items():
            self._times_stopped[pid] = self._times_stopped[pid] + 1 if _is_stopped(pid) else 0
            if self._times_stopped[pid] == LOOKS_STOPPED:
                return self._end(pid, title, f"was stopped for {LOOKS_STOPPED * LOOK_S:g} s")

    def _end(self, pid: int, title: str, how: str = "has ended") -> None:
        self.close()
        if not self.ended.done():
            self.ended.set_result(f"its process {title} ({pid}) {how}")


def _is_stopped(pid: int) -> bool:
    import psutil

    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False
