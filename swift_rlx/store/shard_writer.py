"""Appends units of trajectories to an Arrow IPC stream file.

A unit is one record batch: the rows of some groups, maybe none, with a note (text) and a checksum in the batch's
metadata. It is written whole or, when the process dies in the middle, torn; readers cut a torn end off. What one
`flush` could not write, because the disk is full, the next one writes: nothing is doubled and nothing is left out.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from swift_rlx.errors import StoreError
from swift_rlx.store.schema import FORMAT, checksum, columns, to_batch
from swift_rlx.types import TrajectoryGroup

FORMAT_KEY, NOTE, CHECKSUM = "format", "note", "crc32"


class ShardWriter:
    """Makes the file, which must not exist; `metadata` goes into its schema. One thread at a time.

    `num_bytes`: of the file. Raises `StoreError` where the file cannot be made, written or closed.
    """

    def __init__(self, path: Path, metadata: Mapping[str, str] | None = None) -> None:
        import pyarrow as pa

        self.path = path
        self.num_bytes = 0
        self._is_listed = False
        try:
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            raise self._refused(error) from error
        self._unwritten = io.BytesIO()
        described = columns().with_metadata({FORMAT_KEY: str(FORMAT), **(metadata or {})})
        self._stream = pa.ipc.new_stream(self._unwritten, described)

    def add(self, groups: Iterable[TrajectoryGroup], note: str = "") -> None:
        """Append a unit in memory; `flush` writes it. Raises `StoreError` for what has no place in the columns."""
        batch = to_batch(groups)
        self._stream.write_batch(batch, {NOTE: note, CHECKSUM: str(checksum(batch, note))})

    def flush(self) -> None:
        """Write what was added: it survives the death of this process. After a `StoreError` it may be called again."""
        data = memoryview(self._unwritten.getvalue())
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._file.fileno(), data[written:], self.num_bytes + written)
        except OSError as error:
            raise self._refused(error) from error
        self.num_bytes += written
        self._unwritten.seek(0)
        self._unwritten.truncate()

    def sync(self) -> None:
        """Return when what was flushed survives the loss of power."""
        try:
            os.fsync(self._file.fileno())
            if not self._is_listed:
                _sync_directory(self.path.parent)
                self._is_listed = True
        except OSError as error:
            raise self._refused(error) from error

    def close(self) -> None:
        """Flush, mark the end of the stream, and sync. The file is closed even where this raises `StoreError`."""
        try:
            self._stream.close()
            self.flush()
            self.sync()
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Close the file as it is, without what was not flushed."""
        self._file.close()

    def _refused(self, error: OSError) -> StoreError:
        return StoreError(
            f"'{self.path}' cannot be written: {error.strerror or error}; make room or give write permission there,"
            " then resume from the newest checkpoint"
        )


def _sync_directory(path: Path) -> None:
    """A new file's name is on the disk only when its directory is."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
