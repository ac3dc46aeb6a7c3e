"""Server-sent events: the bytes of a reply, as they come, cut into the data of its events.

    data: {"choices": ...}

    data: [DONE]

A line is a field, a blank line ends an event, lines that begin with a colon say nothing; of the fields only `data`
counts here. An event that has not ended with the bytes is none. (WHATWG, HTML, section 9.2.6.)
"""

from __future__ import annotations

from swift_rlx.backends.remote_answer import NoAnswer

END = b"[DONE]"
"""Data of the last event."""


class EventReader:
    """`max_bytes`: that may come before an event has ended."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._since_event = 0

    def feed(self, part: bytes) -> list[bytes]:
        """The data of the events that end in these bytes. Raises `NoAnswer` where one has too many."""
        events = []
        *lines, rest = part.split(b"\n")
        for line in lines:
            self._line += line
            self._count(len(line) + 1)
            if (data := self._take(bytes(self._line.removesuffix(b"\r")))) is not None:
                events.append(data)
            self._line.clear()
        self._line += rest
        self._count(len(rest))
        return events

    def _count(self, size: int) -> None:
        self._since_event += size
        if self._since_event > self._max_bytes:
            raise NoAnswer(f"it sent an event of more than the {self._max_bytes} bytes that one can have")

    def _take(self, line: bytes) -> bytes | None:
        """Take a line; the data of the event that it ends."""
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        if not self._data:
            return None
        data, self._data, self._since_event = b"\n".join(self._data), [], 0
        return data
