"""The directory through which published weights reach the workers: in shared memory, where it is large enough.

/dev/shm/swift-rlx-<user>-<process>-<random>/full-0.12/...      what was published as version 0.12
                                             full-0.13.tmp/...  what is being written
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from swift_rlx.backends import WeightKind
from swift_rlx.cluster.guardian import guardian
from swift_rlx.errors import ConfigError
from swift_rlx.types import PolicyVersion

SHARED_MEMORY = Path("/dev/shm")
KEPT_ADAPTERS = 4
"""So many of the newest adapters are kept, since an answer may finish on an older one."""
MOST_VERSIONS = {WeightKind.FULL: 4, WeightKind.ADAPTER: KEPT_ADAPTERS + 3}
"""There at a time: live, being taken by the workers, newest, and being written. Beside others a worker that was started
again may still take one more."""
HEADERS_BYTES = 1 << 20
"""Of a version, at most."""
_PREFIX = "swift-rlx"
_LOCK = "lock"
_logger = logging.getLogger("swift_rlx")


def needed_bytes(version_bytes: int, workers: int, kind: WeightKind = WeightKind.FULL) -> int:
    """Room for all versions that are there at a time, each with tensors of `version_bytes`."""
    return (MOST_VERSIONS[kind] + (workers > 1)) * (version_bytes + HEADERS_BYTES)


class WeightDirectory:
    """A new directory of this run, readable by this user only, removed by `remove` or after the end of the process.

    `parent`: where it is made if shared memory has less than `needed_bytes` free (see the function); `notice` is then
    called with a sentence. `shared_memory`: what is tried first; another folder where workers of other machines read
    the weights. What ended runs of this user left is removed. Raises `ConfigError` where shared memory is too small and
    no `parent` is named, or the parent is too small as well.
    """

    def __init__(
        self,
        parent: Path | None = None,
        *,
        needed_bytes: int = 0,
        notice: Callable[[str], None] = _logger.warning,
        shared_memory: Path = SHARED_MEMORY,
    ) -> None:
        for folder in (shared_memory, parent):
            if folder is not None:
                _remove_stale(folder)
        chosen = _choose(parent, needed_bytes, notice, shared_memory)
        self.root = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-{os.getuid()}-{os.getpid()}-", dir=chosen))
        self._kinds: dict[PolicyVersion, WeightKind] = {}
        self._lock = _locked(self.root)
        guardian().add_directory(self.root)

    @contextlib.contextmanager
    def new(self, version: PolicyVersion, kind: WeightKind = WeightKind.FULL) -> Iterator[Path]:
        """An empty directory to write to; at the end of the block it becomes `path(version)`, all at once.

        After an exception nothing of it is left. A version that exists already is replaced.
        """
        final = self.root / f"{kind.value}-{version}"
        draft = final.with_name(final.name + ".tmp")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        try:
            yield draft
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        if version in self._kinds:
            shutil.rmtree(self.path(version), ignore_errors=True)
        draft.replace(final)
        self._kinds[version] = kind

    def path(self, version: PolicyVersion) -> Path:
        """Of a version that was written."""
        return self.root / f"{self._kinds[version].value}-{version}"

    @property
    def versions(self) -> tuple[PolicyVersion, ...]:
        """What is there, oldest first."""
        return tuple(sorted(self._kinds))

    def keep_only(self, needed: Collection[PolicyVersion]) -> None:
        """Delete all other versions, but for the newest adapters."""
        adapters = [version for version in self.versions if self._kinds[version] is WeightKind.ADAPTER]
        for version in self._kinds.keys() - {*needed, *adapters[-KEPT_ADAPTERS:]}:
            shutil.rmtree(self.path(version), ignore_errors=True)
            del self._kinds[version]

    def remove(self) -> None:
        """Delete everything. May be called twice."""
        self._kinds.clear()
        shutil.rmtree(self.root, ignore_errors=True)
        guardian().forget_directory(self.root)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _choose(
    parent: Path | None, needed_bytes: int, notice: Callable[[str], None], shared_memory: Path
) -> Path:
    if (free := _free_bytes(shared_memory)) >= needed_bytes:
        return shared_memory
    need = f"published weights need {_mib(needed_bytes)}, and {shared_memory} has {_mib(free)} free"
    if parent is None:
        raise ConfigError(
            f"{need}; enlarge it (docker run --shm-size, or mount -o remount,size=...) or name a directory for them"
        )
    parent.mkdir(parents=True, exist_ok=True)
    if (there := _free_bytes(parent)) < needed_bytes:
        raise ConfigError(
            f"{need}, and {parent} has {_mib(there)}; enlarge one of them or name another directory"
        )
    notice(f"{need}: they go through {parent}, which is slower; a larger {shared_memory} avoids that")
    return parent


def _free_bytes(folder: Path) -> int:
    """0 where it cannot be written to."""
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return 0
    return shutil.disk_usage(folder).free


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


def _remove_stale(folder: Path) -> None:
    """Delete directories of this user whose run has ended."""
    for found in folder.glob(f"{_PREFIX}-{os.getuid()}-*-*"):
        with contextlib.suppress(OSError):
            if found.stat().st_uid == os.getuid() and _is_left(found):
                shutil.rmtree(found)


def _locked(directory: Path) -> int:
    """The descriptor of a lock that is held from the moment at which it is there."""
    lock = os.open(directory / f"{_LOCK}.tmp", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(directory / f"{_LOCK}.tmp", directory / _LOCK)
    return lock


def _is_left(directory: Path) -> bool:
    """Whether nobody holds its lock; before there is one, whether its process is gone.

    The number of the process tells nothing more: containers that share /dev/shm number theirs on their own.
    """
    try:
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return not Path("/proc", directory.name.split("-")[3]).exists()
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(lock)
