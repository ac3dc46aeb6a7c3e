"""Processes below another one, told by their command lines, while some of them come and go."""

from __future__ import annotations

import contextlib

import psutil


def descendants(pid: int, text: str = "") -> list[psutil.Process]:
    """Those with `text` in their command line; one that has ended meanwhile, also one not yet reaped, is none."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # ZombieProcess is one
                if text in " ".join(one.cmdline()):
                    found.append(one)
    return found


def left_after(processes: list[psutil.Process], limit_s: float) -> list[psutil.Process]:
    """Those that have not ended after so long. One that has is none, though nobody has reaped it yet."""
    _, alive = psutil.wait_procs(processes, timeout=limit_s)
    left = []
    for one in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            if one.status() != psutil.STATUS_ZOMBIE:
                left.append(one)
    return left
