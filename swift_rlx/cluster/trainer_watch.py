"""A worker does not outlive its trainer by more than `ORPHAN_S`, with a guardian or without."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time

ORPHAN_S = 3.0
"""How long the guardian may take, before the worker ends itself after the trainer's end."""


def end_after(trainer: int) -> None:
    """In a thread, which runs whatever the loop does: end this process group after the trainer's end."""

    def wait() -> None:
        with contextlib.suppress(ProcessLookupError):
            alive = os.pidfd_open(trainer)
            if os.getppid() == trainer:
                select.select([alive], [], [])
        time.sleep(ORPHAN_S)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=wait, name="trainer-watch", daemon=True).start()
