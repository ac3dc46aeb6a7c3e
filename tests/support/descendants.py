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
