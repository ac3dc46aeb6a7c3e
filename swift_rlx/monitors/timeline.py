"""What went on when, as a trace that opens in https://ui.perfetto.dev or in Chrome's tracing page.

    Timeline.span(process, lane, ...)  ->  lines in memory  ->  a thread that writes them every 2 s  ->  files

A process of the trace is a part of the run (trainer, rewards, each worker), a lane one kind of work in it; spans of a
lane that overlap get rows. Times are seconds of the run's clock in, microseconds since `start_s` out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from swift_rlx.errors import ConfigError
from swift_rlx.monitors.rows import Rows
from swift_rlx.monitors.timeline_parts import TimelineParts

logger = logging.getLogger(__name__)

PARTS = 3
MIN_BYTES = 1 << 16
WRITE_EVERY_S = 2.0
WRITE_AT_BYTES = 1 << 20
MAX_PENDING_BYTES = 16 << 20
"""Events that a disk that stands still keeps in memory; those beyond are counted and left out."""
FIRST_TID = (
    100  # apart from the pids: viewers take tid == pid for a main thread, and equal tids for one thread
)

Value = str | int | float


class Timeline:
    """Writes a timeline of at most about `max_bytes` in all to `path` and its neighbors (`timeline_parts.py`).

    `start_s`: what the trace's zero is on the run's clock; `started`: the same moment in wall time. May be used from
    any thread: an event costs microseconds and never waits for the disk. A killed process loses the
    last 2 seconds. When the disk refuses, recording ends with one warning; so does `close` where the disk stands still
    for `close_limit_s`. Raises `ConfigError` for fewer than 64 KiB, `OSError` where the first file cannot be made.
    """

    def __init__(
        self,
        path: Path,
        *,
        start_s: float,
        started: datetime | None = None,
        max_bytes: int = 96 << 20,
        close_limit_s: float = 5.0,
    ) -> None:
        if max_bytes < MIN_BYTES:
            raise ConfigError(f"a timeline of {max_bytes} bytes is refused: give it at least {MIN_BYTES}")
        self.left_out = 0
        """Events that a slow or full disk kept from being recorded."""
        self._start_s = start_s
        self._started = started or datetime.now(timezone.utc)
        self._close_limit_s = close_limit_s
        self._lock = threading.Lock()  # of everything that events change
        self._disk = threading.Lock()  # of the files
        self._encode = msgspec.json.Encoder().encode
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._names: list[bytes] = []
        self._pids: dict[str, int] = {}
        self._rows: dict[tuple[str, str], Rows] = {}
        self._tids: dict[tuple[str, str, int], int] = {}
        self._last_us = 0
        self._is_closed = False
        self._wake = threading.Event()  # of the writer
        self._parts: TimelineParts | None = TimelineParts(path, max_bytes // PARTS, self._header)
        self._writer = threading.Thread(target=self._write_on, name="rlx-timeline", daemon=True)
        self._writer.start()

    def span(
        self,
        process: str,
        lane: str,
        name: str,
        start_s: float,
        finish_s: float,
        details: Mapping[str, Value] | None = None,
    ) -> None:
        """Something that took from `start_s` to `finish_s`; what began before the run is drawn from its start."""
        start_us = self._us(start_s)
        finish_us = max(self._us(finish_s), start_us)
        with self._lock:
            pid, tid = self._track(process, lane, start_us, finish_us)
            event = {"name": name, "ph": "X", "ts": start_us, "dur": finish_us - start_us}
            self._add({**event, "pid": pid, "tid": tid, "args": details or {}}, finish_us)

    def counter(self, process: str, name: str, at_s: float, value: float) -> None:
        """A number that changes, drawn as a curve."""
        at_us = self._us(at_s)
        with self._lock:
            event = {
                "name": name,
                "ph": "C",
                "ts": at_us,
                "pid": self._pid(process),
                "args": {"value": value},
            }
            self._add(event, at_us)

    def flush(self) -> None:
        """Write what is in memory."""
        with self._disk:
            with self._lock:
                lines, self._pending, self._pending_bytes = self._pending, [], 0
            if self._parts is None or not lines:
                return
            try:
                self._parts.write(lines, self._end())
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Write the rest and end the file; later events are ignored. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._wake.set()
        self._writer.join(self._close_limit_s)
        if self._writer.is_alive():
            logger.warning(
                "the end of the timeline is not written: its disk has stood still for %g s",
                self._close_limit_s,
            )

    def _us(self, seconds: float) -> int:
        return max(round((seconds - self._start_s) * 1e6), 0)

    def _pid(self, process: str) -> int:
        pid = self._pids.get(process)
        if pid is None:
            pid = self._pids[process] = len(self._pids) + 1
            self._name("process_name", pid, 0, {"name": process})
            self._name("process_sort_index", pid, 0, {"sort_index": pid})
            started = f"started {self._started.isoformat(timespec='milliseconds')}"
            self._name("process_labels", pid, 0, {"labels": started})
        return pid

    def _track(self, process: str, lane: str, start_us: int, finish_us: int) -> tuple[int, int]:
        rows = self._rows.get((process, lane))
        if rows is None:
            rows = self._rows[process, lane] = Rows()
        row = rows.place(start_us, finish_us)
        pid, tid = self._pid(process), self._tids.get((process, lane, row))
        if tid is None:
            tid = self._tids[process, lane, row] = FIRST_TID + len(self._tids)
            self._name("thread_name", pid, tid, {"name": lane if not row else f"{lane} {row + 1}"})
            self._name("thread_sort_index", pid, tid, {"sort_index": row})
        return pid, tid

    def _name(self, kind: str, pid: int, tid: int, details: Mapping[str, Value]) -> None:
        event = {"name": kind, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": details}
        self._names.append(self._encode(event))
        self._add(event, 0)

    def _add(self, event: Mapping[str, object], at_us: int) -> None:
        if self._is_closed or self._parts is None:
            return
        line = self._encode(event)
        if self._pending_bytes + len(line) > MAX_PENDING_BYTES:
            self.left_out += 1
            return
        self._last_us = max(self._last_us, at_us)
        self._pending.append(line)
        self._pending_bytes += len(line)
        if self._pending_bytes > WRITE_AT_BYTES:
            self._wake.set()

    def _header(self) -> list[bytes]:
        with self._lock:
            return list(self._names)

    def _end(self) -> bytes:
        """The event that ends a part: a mark on the first process, with what the part lacks."""
        details = {"started": self._started.isoformat(timespec="milliseconds"), "left_out": self.left_out}
        event = {"name": "end of file", "ph": "i", "s": "g", "ts": self._last_us, "pid": 1, "tid": 0}
        return self._encode({**event, "args": details})

    def _write_on(self) -> None:
        while not self._is_closed:
            self._wake.wait(WRITE_EVERY_S)
            self._wake.clear()
            self.flush()
        self.flush()
        with self._disk:
            if self._parts is not None:
                try:
                    self._parts.close(self._end())
                except OSError as error:
                    self._give_up(error)
                self._parts = None

    def _give_up(self, error: OSError) -> None:
        logger.warning(f"the timeline ends here, because its file cannot be written: {error}")
        self._parts = None
