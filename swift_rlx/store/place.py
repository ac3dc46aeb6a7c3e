"""Where the files of a store are: a directory, or a folder of an object store through fsspec.

A file is written once and never changed. `create` is exclusive: of several processes that create the same name exactly
one succeeds, which is all that the manifest needs for its order. On a disk (also NFS) that is a hard link, which both
appears whole and fails where the name is taken; on an object store it is a conditional put.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swift_rlx.errors import StoreError
from swift_rlx.store.shard_writer import sync_directory

PARTIAL = ".partial"
EXCLUSIVE = "exclusive-"
"""How the name of a file begins that `check_exclusive` makes and removes."""
BLOCK_BYTES = 2**22


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a place: its name, and how long ago it was last written."""

    name: str
    age_s: float


class Place(Protocol):
    """Files by relative name, with `/` between folders. All methods raise `StoreError` for what the disk refuses."""

    url: str

    def check_exclusive(self) -> None:
        """Raise `StoreError` where two processes could create the same name."""

    def create(self, name: str, data: bytes) -> bool:
        """Make a whole file, or return False where the name is taken."""

    def partial(self, name: str) -> Path:
        """A path on this machine to write a large file to, before it is `put` under that name."""

    def put(self, partial: Path, name: str) -> None:
        """Let a finished, synced file appear under a name that nobody else uses."""

    def read(self, name: str) -> bytes | None:
        """A small file; None where there is none."""

    def local(self, name: str, num_bytes: int) -> Path:
        """A path on this machine that holds the file and can be memory-mapped."""

    def blocks(self, name: str) -> Iterator[bytes]:
        """The contents of a file where it is, not in a cache."""

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder, without the folder, sorted."""

    def entries(self) -> list[str]:
        """Names of what is at the top, folders too, sorted; none where nothing is there yet."""

    def files(self) -> Iterator[FoundFile]:
        """All files, partial ones included."""

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens where there is none."""


def place_at(url: str | Path, cache: Path | None = None) -> Place:
    """The place that a path or an fsspec URL (`s3://bucket/folder`) names. `cache`: folder for remote files."""
    text = str(url)
    if "://" not in text and "::" not in text:
        return LocalPlace(Path(text))
    from swift_rlx.store.remote_place import RemotePlace

    return RemotePlace(text, cache)


class LocalPlace:
    """A directory of this machine or of NFS."""

    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root

    def check_exclusive(self) -> None:
        """A hard link is refused where its name is taken."""

    def create(self, name: str, data: bytes) -> bool:
        target = self._root / name
        partial = self.partial(name)
        try:
            with partial.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, target)
            sync_directory(target.parent)
        except FileExistsError:
            return False
        except OSError as error:
            raise refused(self.url, "written", name, error) from error
        finally:
            partial.unlink(missing_ok=True)
        return True

    def partial(self, name: str) -> Path:
        target = self._root / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refused(self.url, "written", name, error) from error
        return target.with_name(f"{target.name}.{secrets.token_hex(4)}{PARTIAL}")

    def put(self, partial: Path, name: str) -> None:
        try:
            partial.rename(self._root / name)
            sync_directory(partial.parent)
        except OSError as error:
            raise refused(self.url, "written", name, error) from error

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise refused(self.url, "read", name, error) from error

    def local(self, name: str, num_bytes: int) -> Path:
        path = self._root / name
        try:
            found = path.stat().st_size
        except OSError as error:
            raise refused(self.url, "read", name, error) from error
        if found != num_bytes:
            raise torn(self.url, name, found, num_bytes)
        return path

    def blocks(self, name: str) -> Iterator[bytes]:
        try:
            with (self._root / name).open("rb") as file:
                while block := file.read(BLOCK_BYTES):
                    yield block
        except OSError as error:
            raise refused(self.url, "read", name, error) from error

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self._root / folder) if entry.is_file())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refused(self.url, "read", folder, error) from error

    def entries(self) -> list[str]:
        try:
            return sorted(os.listdir(self._root))
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            raise StoreError(
                f"'{self.url}' is a file; give the directory of a store, or one that is not there yet"
            ) from error
        except OSError as error:
            raise refused(self.url, "read", "", error) from error

    def files(self) -> Iterator[FoundFile]:
        for path in sorted(self._root.rglob("*")):
            try:
                if path.is_file():
                    age = time.time() - path.stat().st_mtime
                    yield FoundFile(path.relative_to(self._root).as_posix(), age)
            except FileNotFoundError:
                continue  # another process tidied it away

    def delete(self, name: str) -> None:
        try:
            (self._root / name).unlink(missing_ok=True)
        except OSError as error:
            raise refused(self.url, "deleted", name, error) from error


def refused(url: str, what: str, name: str, error: Exception) -> StoreError:
    """A file could not be `what`: written, read, deleted."""
    cause = (error.strerror if isinstance(error, OSError) else None) or error
    return StoreError(f"'{name}' of the store '{url}' cannot be {what}: {cause}")


def torn(url: str, name: str, found: int, expected: int) -> StoreError:
    """A file has another length than it was written with."""
    return StoreError(
        f"'{name}' of the store '{url}' has {found} bytes of {expected}; `swift-rlx store verify {url} --repair` takes"
        " what is damaged out and keeps the rest"
    )
