"""No orphans: a tiny process that outlives the trainer and ends what it leaves behind, whatever ended it.

    trainer --pipe--> guardian        "group 123 mark", "directory /dev/shm/...", the same with "forget " before it
       |                  |
       +-- worker groups  +-- waits for the trainer's end, then kills the groups and removes the directories

The trainer's end is read from its pidfd, not from the end of the pipe: a process that the trainer forked (data loaders)
holds copies of its pipes. This file is also the guardian's program, run without site-packages: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

SHARED_MEMORY = "/dev/shm/"
SEGMENTS = ("psm_", "sem.mp-", "torch_")
"""How the segments in shared memory begin that Python's multiprocessing and torch make."""
MARK = "SWIFT_RLX_WORKER"
"""Environment variable by which descendants of a worker are known, whatever session they are in."""
TRACKER_S = 1.0
"""How long multiprocessing's resource tracker may take to remove what it knows of."""
_TRACKER = b"multiprocessing.resource_tracker"


def members(group: int, mark: str = "") -> set[int]:
    """Living processes of a process group, of the session of the same number, and descendants of those.

    Also those whose environment has `MARK` with this value: descendants that went their own way.
    """
    sign = f"{MARK}={mark}".encode() if mark else b""
    parents: dict[int, int] = {}
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        fields = _read(entry, "stat").decode(errors="replace").rpartition(")")[2].split()[:4]
        if not fields or fields[0] in "ZX":
            continue
        _, parent, process_group, session = fields
        parents[int(entry)] = int(parent)
        if group in (int(process_group), int(session)) or (
            sign and sign in _read(entry, "environ").split(b"\0")
        ):
            found.add(int(entry))
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def end_group(group: int, mark: str = "") -> None:
    """Kill the `members` of a process group, and remove the shared memory that only they had mapped.

    Blocks for milliseconds; up to a second where a resource tracker of multiprocessing cleans up.
    """
    processes = members(group, mark)
    segments = _segments(processes)
    trackers = {one for one in processes if _TRACKER in _read(str(one), "cmdline")}
    _kill(processes - trackers)
    until = time.monotonic() + TRACKER_S
    while trackers & members(group, mark) and time.monotonic() < until:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(50):  # what was forked in between
        if not (rest := members(group, mark)):
            break
        segments |= _segments(rest)
        _kill(rest)
        time.sleep(0.01)
    _remove_segments(segments)


def _kill(processes: Iterable[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def _read(process: str, file: str) -> bytes:
    """A file about a process; empty where it has ended or is somebody else's."""
    try:
        return Path("/proc", process, file).read_bytes()
    except OSError:
        return b""


def _segments(processes: Iterable[int]) -> set[str]:
    """Paths in shared memory that these processes have mapped."""
    found = set()
    for process in processes:
        for line in _read(str(process), "maps").decode(errors="replace").splitlines():
            path = line.partition(SHARED_MEMORY)[2]
            if path.startswith(SEGMENTS) and not path.endswith(" (deleted)"):
                found.add(SHARED_MEMORY + path)
    return found


def _remove_segments(segments: set[str]) -> None:
    """Remove those that are ours and that no living process uses."""
    if segments:
        segments = segments - _segments(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    for path in segments:
        with contextlib.suppress(OSError):
            if os.stat(path).st_uid == os.getuid():
                os.unlink(path)


class Guardian:
    """The trainer's side. Thread-safe. A guardian that is gone is started again with all that it has to know."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def add_group(self, group: int, mark: str) -> None:
        """Kill the members of this process group when the trainer is gone."""
        self._add(f"group {group} {mark}")

    def forget_group(self, group: int, mark: str) -> None:
        """It has ended."""
        self._forget(f"group {group} {mark}")

    def add_directory(self, path: Path) -> None:
        """Remove this directory when the trainer is gone."""
        self._add(f"directory {path}")

    def forget_directory(self, path: Path) -> None:
        """It was removed."""
        self._forget(f"directory {path}")

    @property
    def pid(self) -> int | None:
        """Of the guardian's process, once something was added."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the guardian; what it was told to guard is left alone."""
        with self._lock:
            if self._process is not None and self._owner == os.getpid():
                self._process.kill()
                self._process.communicate()
            self._process = None
            self._lines.clear()

    def _add(self, line: str) -> None:
        with self._lock:
            self._lines.add(line)
            self._tell(line)

    def _forget(self, line: str) -> None:
        with self._lock:
            self._lines.discard(line)
            if self._process is not None:
                self._tell(f"forget {line}")

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.poll() is None and self._write([line]):
            return
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self._write(sorted(self._lines))

    def _write(self, lines: list[str]) -> bool:
        pipe = None if self._process is None else self._process.stdin
        if pipe is None:
            return False
        try:
            pipe.write("".join(f"{line}\n" for line in lines).encode())
            pipe.flush()
        except BrokenPipeError:
            return False
        return True


_guardian: Guardian | None = None
_guardian_lock = threading.Lock()


def guardian() -> Guardian:
    """The guardian of this process; a forked process gets its own."""
    global _guardian
    with _guardian_lock:
        if _guardian is None or _guardian._owner != os.getpid():
            _guardian = Guardian()
        return _guardian


def main() -> None:
    """The guardian's program: wait for the end of the process whose number is the first argument."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # a signal to everybody is no reason to stop guarding
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    trainer = int(sys.argv[1])
    try:
        alive = os.pidfd_open(trainer)
        lines = _listen(alive) if os.getppid() == trainer else _read_all()
    except ProcessLookupError:
        lines = _read_all()
    for line in sorted(lines, reverse=True):  # groups before directories
        kind, _, what = line.partition(" ")
        if kind == "group":
            number, _, mark = what.partition(" ")
            end_group(int(number), mark)
        else:
            shutil.rmtree(what, ignore_errors=True)


def _read_all() -> set[str]:
    """The trainer ended before we began; what it wrote is in the pipe."""
    os.set_blocking(0, False)
    return _apply(set(), _read_pipe() or b"")


def _listen(alive: int) -> set[str]:
    """Take lines until the process behind the pidfd has ended; what is then in force."""
    os.set_blocking(0, False)
    poll = select.poll()
    poll.register(alive, select.POLLIN)
    poll.register(0, select.POLLIN)
    lines: set[str] = set()
    rest = b""
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if 0 in ready:
            data = _read_pipe()
            if data == b"":
                poll.unregister(0)  # the pipe was closed; only the pidfd tells the end
            complete, _, rest = (rest + (data or b"")).rpartition(b"\n")
            lines = _apply(lines, complete)
        elif alive in ready:
            return lines


def _read_pipe() -> bytes | None:
    try:
        return os.read(0, 1 << 16)
    except BlockingIOError:
        return None


def _apply(lines: set[str], data: bytes) -> set[str]:
    for line in data.decode().splitlines():
        if line.startswith("forget "):
            lines.discard(line.removeprefix("forget "))
        elif line:
            lines.add(line)
    return lines


if __name__ == "__main__":
    main()
