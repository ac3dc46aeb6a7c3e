"""Appends units of trajectories to an Arrow IPC stream file.

A unit is one record batch: the rows of some groups, maybe none, with a note (text) and a checksum in the batch's
metadata. It is written whole or, when the process dies in the middle, torn; readers cut a torn end off. What one
`flush` could not write, because the disk is full, the next one writes: nothing is doubled and nothing is left out.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from swift_rlx.errors import StoreError
from swift_rlx.store.schema import FORMAT, Batch, checksum, columns, to_batch
from swift_rlx.types import TrajectoryGroup

FORMAT_KEY, NOTE, CHECKSUM = "format", "note", "crc32"


class ShardWriter:
    """Makes the file, which must not exist; `metadata` goes into its schema. One thread at a time.

    `schema`: other columns than those of a journal; `compression`: of the columns, such as `zstd`. `num_bytes` and
    `crc32`: of the file. Raises `StoreError` where the file cannot be made, written or closed.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, str] | None = None,
        *,
        schema: Any = None,
        compression: str | None = None,
    ) -> None:
        import pyarrow as pa

        self.path = path
        self.num_bytes = self.crc32 = 0
        self._is_listed = self._has_end = False
        try:
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            raise self._refused(error) from error
        self._unwritten = io.BytesIO()
        described = (schema or columns()).with_metadata({FORMAT_KEY: str(FORMAT), **(metadata or {})})
        options = pa.ipc.IpcWriteOptions(compression=compression)
        self._stream = pa.ipc.new_stream(self._unwritten, described, options=options)

    def add(self, groups: Iterable[TrajectoryGroup], note: str = "") -> None:
        """Append a unit in memory; `flush` writes it. Raises `StoreError` for what has no place in the columns."""
        self.add_batch(to_batch(groups), note)

    def add_batch(self, batch: Batch, note: str = "") -> None:
        """As `add`, of rows that are in columns already."""
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
        self.crc32 = zlib.crc32(data, self.crc32)
        self.num_bytes += written
        self._unwritten.seek(0)
        self._unwritten.truncate()

    def sync(self) -> None:
        """Return when what was flushed survives the loss of power."""
        try:
            os.fsync(self._file.fileno())
            if not self._is_listed:
                sync_directory(self.path.parent)
                self._is_listed = True
        except OSError as error:
            raise self._refused(error) from error

    def end(self) -> None:
        """Flush, mark the end of the stream, and sync; nothing can be added any more.

        After a `StoreError` it may be called again. The file stays open until `close` or `abandon`.
        """
        if not self._has_end:
            self._stream.close()
            self._has_end = True
        self.flush()
        self.sync()

    def close(self) -> None:
        """`end` it. The file is closed even where this raises `StoreError`."""
        try:
            self.end()
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


def sync_directory(path: Path) -> None:
    """Sync it: a new file's name is on the disk only when its directory is."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
