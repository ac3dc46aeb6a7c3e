"""A folder of an object store, or of whatever else fsspec reaches, as the place of a store."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swift_rlx.errors import StoreError
from swift_rlx.store.place import BLOCK_BYTES, EXCLUSIVE, PARTIAL, FoundFile, refused, torn


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
            raise refused(self.url, "written", name, error) from error
        return True

    def check_exclusive(self) -> None:
        """Raise `StoreError` where a second `create` of a name is not refused by the file system itself."""
        name = f"{self._root}/{EXCLUSIVE}{secrets.token_hex(8)}"
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
            raise refused(self.url, "written", name, error) from error
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
            raise refused(self.url, "written", name, error) from error

    def read(self, name: str) -> bytes | None:
        try:
            data: bytes = self._fs.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refused(self.url, "read", name, error) from error
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
                raise refused(self.url, "read", name, error) from error
            if copy.stat().st_size != num_bytes:
                raise torn(self.url, name, copy.stat().st_size, num_bytes)
            copy.replace(path)
        return path

    def blocks(self, name: str) -> Iterator[bytes]:
        try:
            with self._fs.open(f"{self._root}/{name}", "rb") as file:
                while block := file.read(BLOCK_BYTES):
                    yield block
        except OSError as error:
            raise refused(self.url, "read", name, error) from error

    def names(self, folder: str) -> list[str]:
        try:
            self._fs.invalidate_cache()
            found = self._fs.ls(f"{self._root}/{folder}", detail=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refused(self.url, "read", folder, error) from error
        return sorted(one["name"].rsplit("/", 1)[-1] for one in found if one["type"] == "file")

    def entries(self) -> list[str]:
        root = self._root.rstrip("/")
        try:
            self._fs.invalidate_cache()
            found = [path.rstrip("/") for path in self._fs.ls(root, detail=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise refused(self.url, "read", "", error) from error
        return sorted(path.rsplit("/", 1)[-1] for path in found if path.strip("/") != root.strip("/"))

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
            raise refused(self.url, "deleted", name, error) from error


def _modified_s(fs: Any, path: str, facts: dict[str, Any]) -> float:
    """Time of the last change; now where the file system does not tell it, so that nothing looks old."""
    try:
        return float(fs.modified(path).timestamp())
    except (NotImplementedError, AttributeError, OSError):
        return time.time()
