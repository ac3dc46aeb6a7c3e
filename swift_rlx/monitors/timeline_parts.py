"""The files of a timeline: a few parts of bounded size, each of which opens by itself.

    timeline.json            the newest part, written now
    timeline.previous.json   the part before it
    timeline.start.json      the first part of all, kept for ever

A part that is full becomes `start` if there is none yet, else `previous`, and replaces the `previous` that was there.
So the files hold the start of a run and its last events; what lies between goes. A part that an earlier process left
is treated as a full one.

A part is a JSON array in Chrome's trace event format with one event a line. The part of a killed process lacks its
end; trace viewers accept that, and `read_timeline` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

END_BYTES = 128
"""Room for the line that ends a part."""


class TimelineParts:
    """Appends lines to the newest part. `header()` gives the lines that each part begins with.

    A line is one encoded event without separator. Raises `OSError` where the disk does. One thread at a time.
    """

    def __init__(self, path: Path, part_bytes: int, header: Callable[[], Iterable[bytes]]) -> None:
        self.path = path
        self._start = path.with_suffix(f".start{path.suffix}")
        self._previous = path.with_suffix(f".previous{path.suffix}")
        self._part_bytes = part_bytes
        self._header = header
        self._size = self._header_size = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open()

    def write(self, lines: Iterable[bytes], end: bytes) -> None:
        """Append events and hand them to the operating system; `end`: the event that ends a part that gets full."""
        chunk: list[bytes] = []
        for line in lines:
            if self._is_full(len(line)):
                self._file.write(b"".join(chunk))
                chunk.clear()
                self._finish(end)
                self._file = self._open()
            chunk.append(line + b",\n")
            self._size += len(line) + 2
        self._file.write(b"".join(chunk))
        self._file.flush()

    def close(self, end: bytes) -> None:
        """End the newest part with this event."""
        self._finish(end)

    def _is_full(self, more: int) -> bool:
        has_event = self._size > self._header_size
        return has_event and self._size + more + 2 + END_BYTES > self._part_bytes

    def _open(self) -> BinaryIO:
        if self.path.exists():
            self.path.replace(self._previous if self._start.exists() else self._start)
        header = b"[\n" + b"".join(line + b",\n" for line in self._header())
        file = self.path.open("wb")
        file.write(header)
        self._size = self._header_size = len(header)
        return file

    def _finish(self, end: bytes) -> None:
        with self._file:
            self._file.write(end + b"\n]\n")


def read_timeline(path: Path) -> list[dict[str, Any]]:
    """The events of one part, also of one that was cut short: a last line without its end is left out."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1].rstrip()
    if not whole.endswith(b"]"):
        whole = (whole.rstrip(b",") or b"[") + b"]"
    events: list[dict[str, Any]] = msgspec.json.decode(whole)
    return events
