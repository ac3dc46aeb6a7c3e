"""The processes of a running vLLM engine, and word of the end of one of them.

    worker process (ours) -> VLLM::EngineCore -> VLLM::Worker, one a device

vLLM notices a dead process itself, but seconds later; the operating system says it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

TITLE = "VLLM::"


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
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        self._descriptors.clear()

    def _end(self, pid: int, title: str) -> None:
        self.close()
        if not self.ended.done():
            self.ended.set_result(f"its process {title} ({pid}) has ended")
