"""Where the files of a store are: a directory, or a folder of an object store through fsspec.

A file is written once and never changed. `create` is exclusive: of several processes that create the same name exactly
one succeeds, which is all that the manifest needs for its order. On a disk (also NFS) that is a hard link, which both
appears whole and fails where the name is taken; on an object store it is a conditional put.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from swift_rlx.errors import StoreError
from swift_rlx.store.shard_writer import sync_directory

PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a place: its name, and how long ago it was last written."""

    name: str
    age_s: float


class Place(Protocol):
    """Files by relative name, with `/` between folders. All methods raise `StoreError` for what the disk refuses."""

    url: str

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

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder, without the folder, sorted."""

    def files(self) -> Iterator[FoundFile]:
        """All files, partial ones included."""

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens where there is none."""


def place_at(url: str | Path, cache: Path | None = None) -> Place:
    """The place that a path or an fsspec URL (`s3://bucket/folder`) names. `cache`: folder for remote files."""
    text = str(url)
    if "://" not in text and "::" not in text:
        return LocalPlace(Path(text))
    return RemotePlace(text, cache)


class LocalPlace:
    """A directory of this machine or of NFS."""

    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root

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
            raise _refused(self.url, "written", name, error) from error
        finally:
            partial.unlink(missing_ok=True)
        return True

    def partial(self, name: str) -> Path:
        target = self._root / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _refused(self.url, "written", name, error) from error
        return target.with_name(f"{target.name}.{secrets.token_hex(4)}{PARTIAL}")

    def put(self, partial: Path, name: str) -> None:
        try:
            partial.rename(self._root / name)
            sync_directory(partial.parent)
        except OSError as error:
            raise _refused(self.url, "written", name, error) from error

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _refused(self.url, "read", name, error) from error

    def local(self, name: str, num_bytes: int) -> Path:
        path = self._root / name
        try:
            found = path.stat().st_size
        except OSError as error:
            raise _refused(self.url, "read", name, error) from error
        if found != num_bytes:
            raise _torn(self.url, name, found, num_bytes)
        return path

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self._root / folder) if entry.is_file())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _refused(self.url, "read", folder, error) from error

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
            raise _refused(self.url, "deleted", name, error) from error


class RemotePlace:
    """A folder that fsspec reaches. Files are copied to `cache` (of this user) when they are first read.

    Raises `StoreError` where the file system cannot be used, or its `create` overwrites: two writers would lose rows.
    """

    def __init__(self, url: str, cache: Path | None = None) -> None:
        import fsspec

        self.url = url
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError, OSError) as error:
            raise StoreError(f"the store '{url}' cannot be reached: {error}") from error
        base = cache or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "swift-rlx"
        self._cache = base / hashlib.blake2b(url.encode(), digest_size=8).hexdigest()

    def create(self, name: str, data: bytes) -> bool:
        path = f"{self._root}/{name}"
        try:
            self._fs.makedirs(os.path.dirname(path), exist_ok=True)
            if self._fs.exists(path):  # spares the transfer; what decides is the conditional put
                return False
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except (OSError, TypeError, ValueError, NotImplementedError) as error:
            raise _refused(self.url, "written", name, error) from error
        return True

    def check_exclusive(self) -> None:
        """Raise `StoreError` where a second `create` of a name is not refused by the file system itself."""
        name = f"{self._root}/exclusive-{secrets.token_hex(8)}"
        try:
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(name, b"1", mode="create")
            try:
                self._fs.pipe_file(name, b"2", mode="create")
            except FileExistsError:
                return
            finally:
                self._fs.rm_file(name)
        except (OSError, TypeError, ValueError, NotImplementedError) as error:
            raise _refused(self.url, "written", name, error) from error
        raise StoreError(
            f"'{self.url}' cannot hold a store: its file system overwrites a file that must not exist, so two writers"
            " would lose rows; install a newer version of its fsspec package, or use a local directory"
        )

    def partial(self, name: str) -> Path:
        self._cache.mkdir(parents=True, exist_ok=True)
        return self._cache / f"{secrets.token_hex(8)}{PARTIAL}"

    def put(self, partial: Path, name: str) -> None:
        path = f"{self._root}/{name}"
        try:
            self._fs.makedirs(os.path.dirname(path), exist_ok=True)
            self._fs.put_file(str(partial), path)
            partial.unlink()
        except OSError as error:
            raise _refused(self.url, "written", name, error) from error

    def read(self, name: str) -> bytes | None:
        try:
            data: bytes = self._fs.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refused(self.url, "read", name, error) from error
        return data

    def local(self, name: str, num_bytes: int) -> Path:
        path = self._cache / name
        if path.is_file() and path.stat().st_size == num_bytes:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            copy = Path(folder, "copy")
            try:
                self._fs.get_file(f"{self._root}/{name}", str(copy))
            except OSError as error:
                raise _refused(self.url, "read", name, error) from error
            if copy.stat().st_size != num_bytes:
                raise _torn(self.url, name, copy.stat().st_size, num_bytes)
            copy.replace(path)
        return path

    def names(self, folder: str) -> list[str]:
        try:
            self._fs.invalidate_cache()
            found = self._fs.ls(f"{self._root}/{folder}", detail=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _refused(self.url, "read", folder, error) from error
        return sorted(one["name"].rsplit("/", 1)[-1] for one in found if one["type"] == "file")

    def files(self) -> Iterator[FoundFile]:
        self._fs.invalidate_cache()
        for path, facts in sorted(self._fs.find(self._root, detail=True).items()):
            name = path[len(self._root.rstrip("/")) + 1 :] if path.startswith(self._root) else path
            yield FoundFile(name, time.time() - _modified_s(self._fs, path, facts))

    def delete(self, name: str) -> None:
        (self._cache / name).unlink(missing_ok=True)
        try:
            self._fs.rm_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise _refused(self.url, "deleted", name, error) from error


def _modified_s(fs: Any, path: str, facts: dict[str, Any]) -> float:
    """Time of the last change; now where the file system does not tell it, so that nothing looks old."""
    try:
        return float(fs.modified(path).timestamp())
    except (NotImplementedError, AttributeError, OSError):
        return time.time()


def _refused(url: str, what: str, name: str, error: Exception) -> StoreError:
    cause = (error.strerror if isinstance(error, OSError) else None) or error
    return StoreError(f"'{name}' of the store '{url}' cannot be {what}: {cause}")


def _torn(url: str, name: str, found: int, expected: int) -> StoreError:
    return StoreError(
        f"'{name}' of the store '{url}' has {found} bytes of {expected}; `swift-rlx store verify {url} --repair` takes"
        " what is damaged out and keeps the rest"
    )
