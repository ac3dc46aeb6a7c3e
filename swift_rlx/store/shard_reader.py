"""Reads files of trajectories: whole units, up to the first that is torn or altered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swift_rlx.errors import StoreError
from swift_rlx.store.schema import FORMAT, checksum, columns, to_groups
from swift_rlx.store.shard_writer import CHECKSUM, FORMAT_KEY, NOTE
from swift_rlx.types import TrajectoryGroup

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """What was added at once."""

    groups: tuple[TrajectoryGroup, ...]
    note: str


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """What a file holds. `cut_bytes`: at its end, that are no whole unit; they are not in `units`."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    units: tuple[Unit, ...] = ()
    cut_bytes: int = 0


def read_shard(path: Path) -> Shard:
    """Every whole unit of a file, which is read into memory; a file without a whole beginning has none.

    Raises `StoreError` where it cannot be opened, or has another format.
    """
    import pyarrow as pa

    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"'{path}' cannot be read: {error.strerror or error}") from error
    source = pa.BufferReader(data)
    try:
        stream = pa.ipc.open_stream(source)
    except (pa.ArrowException, OSError):
        return Shard(cut_bytes=len(data))
    metadata = _metadata(path, stream.schema)
    units, end = [], source.tell()
    for unit in _whole_units(stream):
        units.append(unit)
        end = source.tell()
    if data[end : end + len(END_OF_STREAM)] == END_OF_STREAM:
        end += len(END_OF_STREAM)
    return Shard(metadata, tuple(units), len(data) - end)


def read_metadata(path: Path) -> Mapping[str, str] | None:
    """The metadata of a file, None where its beginning is not whole. Raises `StoreError` as `read_shard` does."""
    import pyarrow as pa

    try:
        with path.open("rb") as file:
            return _metadata(path, pa.ipc.open_stream(file).schema)
    except (pa.ArrowInvalid, EOFError):
        return None
    except OSError as error:
        raise StoreError(f"'{path}' cannot be read: {error.strerror or error}") from error


def _metadata(path: Path, schema: Any) -> dict[str, str]:
    found = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    if found.get(FORMAT_KEY) != str(FORMAT):
        raise StoreError(
            f"'{path}' has format {found.get(FORMAT_KEY, 'unknown')} of trajectories, and this version reads {FORMAT};"
            " read it with the version that wrote it"
        )
    missing = [column.name for column in columns() if column.name not in schema.names]
    if missing:
        raise StoreError(f"'{path}' lacks the columns {', '.join(missing)} of trajectories")
    return found


def _whole_units(stream: Any) -> Iterator[Unit]:
    """Up to the end, or to what cannot be read or is not what was written."""
    import pyarrow as pa

    while True:
        try:
            batch, metadata = stream.read_next_batch_with_custom_metadata()
            batch.validate(full=True)  # before anything is done with it: lengths may be wild
        except (StopIteration, pa.ArrowException, OSError):
            return
        found = dict(metadata or {})
        note = found.get(NOTE.encode(), b"").decode(errors="replace")
        if found.get(CHECKSUM.encode()) != str(checksum(batch, note)).encode():
            return
        yield Unit(to_groups(batch), note)
