"""`metrics.jsonl`: one line per logging step, as it was written to the log."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

logger = logging.getLogger(__name__)


class MetricsFile:
    """Appends `{"step": ..., "time": ..., "values": {...}}` lines; each is with the operating system at once.

    `time`: seconds since 1970. What is not finite becomes null. A half line that a killed process left is ended.
    When the disk refuses, writing ends with one warning. Raises `OSError` where the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file: BinaryIO | None = path.open("ab", buffering=0)
        if path.stat().st_size and not _ends_line(path):
            self._append(b"\n")

    def write(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """One line."""
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._append(msgspec.json.encode({"step": step, "time": time_s, "values": finite}) + b"\n")

    def close(self) -> None:
        """May be called twice; later lines are ignored."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(line)
        except OSError as error:
            logger.warning(f"'{self._path}' ends here, because it cannot be written: {error}")
            self.close()


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
