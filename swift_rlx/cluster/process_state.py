"""Whether a process is stopped: it exists, and does nothing until somebody lets it go on."""

from __future__ import annotations

from pathlib import Path

STOPPED_S = 5.0
"""A worker that is stopped for that long does not serve, whoever stopped it."""


def is_stopped(process: int) -> bool:
    """Whether a signal has stopped it (SIGSTOP and the like). False for one that is gone."""
    try:
        text = Path("/proc", str(process), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] == ["T"]
