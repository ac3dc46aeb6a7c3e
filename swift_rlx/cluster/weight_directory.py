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
from collections.abc import Callable, Iterator
from pathlib import Path

from swift_rlx.backends import WeightKind
from swift_rlx.cluster.guardian import guardian
from swift_rlx.errors import ConfigError
from swift_rlx.types import PolicyVersion

SHARED_MEMORY = Path("/dev/shm")
KEPT = {WeightKind.FULL: 2, WeightKind.ADAPTER: 4}
"""How many of the newest versions are kept; of adapters more, since an answer may finish on an older one."""
_PREFIX = "swift-rlx"
_LOCK = "lock"
_logger = logging.getLogger("swift_rlx")


class WeightDirectory:
    """A new directory of this run, readable by this user only, removed by `remove` or after the end of the process.

    `parent`: where it is made if shared memory has less than `needed_bytes` free (give those of two versions); `notice`
    is then called with a sentence. `shared_memory`: what is tried first; another folder where workers of other machines
    read the weights. What ended runs of this user left is removed. Raises `ConfigError` where shared memory is too
    small and no `parent` is named, or the parent is too small as well.
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
        self._lock = os.open(self.root / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
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

    def retire(self, live: PolicyVersion) -> None:
        """Delete what nobody needs any more now that `live` is on the workers.

        Kept are `live`, everything newer, and as many of the newest of each kind as `KEPT` says.
        """
        for kind, kept in KEPT.items():
            versions = [version for version in self.versions if self._kinds[version] is kind]
            for version in versions[:-kept]:
                if version < live:
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
    free = _free_bytes(shared_memory)
    if free >= needed_bytes:
        return shared_memory
    need = f"weights of two versions need {_mib(needed_bytes)}, and {shared_memory} has {_mib(free)} free"
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
    """Delete directories of this user whose process is gone and whose lock nobody holds.

    The number alone does not tell: containers that share /dev/shm number their processes on their own.
    """
    for found in folder.glob(f"{_PREFIX}-{os.getuid()}-*-*"):
        process = found.name.split("-")[3]
        with contextlib.suppress(OSError):
            if found.stat().st_uid == os.getuid() and not Path("/proc", process).exists() and _is_free(found):
                shutil.rmtree(found)


def _is_free(directory: Path) -> bool:
    try:
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(lock)
