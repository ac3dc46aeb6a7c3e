"""New columns for rows that are sealed: rewards of another version, scores by people, log-probs that were missing.

An overlay is a file of a shard that has some of the columns of its rows, for all of them. Tokens and texts are not
written again. `compact` puts overlays and rows together.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from swift_rlx.errors import StoreError
from swift_rlx.store.chunk import Chunk
from swift_rlx.store.manifest import OVERLAY, Change, ManifestLog, Part, ShardEntry
from swift_rlx.store.place import Place
from swift_rlx.store.round_writer import SHARDS
from swift_rlx.store.row_columns import row_schema
from swift_rlx.store.sealed_shard import SealedShard
from swift_rlx.store.shard_writer import ShardWriter

COVERABLE = ("logprobs", "reward", "breakdown", "recipe", "scored_s")

NewColumns = Callable[[SealedShard, int], Mapping[str, list[Any]]]
"""Of a shard and the number of one of its chunks: values of some columns, one for each row."""


def write_overlay(
    place: Place, shard: SealedShard, names: tuple[str, ...], columns: NewColumns
) -> ShardEntry:
    """The shard's entry with an overlay of the columns `names`, not published yet. An overlay of before with no other
    columns leaves it. Raises `StoreError` for columns that cannot be covered.
    """
    import pyarrow as pa

    if not set(names) <= set(COVERABLE):
        raise StoreError(
            f"the columns {', '.join(names)} of sealed rows cannot be replaced; allowed are {', '.join(COVERABLE)}"
        )
    full = row_schema(False)  # log-probs that come later are computed, and exact
    schema = pa.schema([full.field(name) for name in names])
    file = f"{SHARDS}/{shard.entry.name}.{OVERLAY}-{secrets.token_hex(4)}.arrow"
    writer = ShardWriter(place.partial(file), {"kind": OVERLAY, "columns": " ".join(names)}, schema=schema)
    try:
        for number in range(len(shard.chunks)):
            values = columns(shard, number)
            arrays = [pa.array(values[column.name], column.type) for column in schema]
            writer.add_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            writer.flush()
        writer.close()
    except BaseException:
        writer.abandon()
        writer.path.unlink(missing_ok=True)
        raise
    place.put(writer.path, file)
    part = Part(OVERLAY, file, writer.num_bytes, writer.crc32)
    kept = tuple(one for one in shard.entry.parts if not (one.kind == OVERLAY and _covers(shard, one, names)))
    return replace(shard.entry, parts=(*kept, part))


def publish_overlays(log: ManifestLog, entries: Mapping[ShardEntry, ShardEntry]) -> None:
    """Put the new entries of shards in the place of the old, all at once.

    Raises `ChangeRefused` where another process has changed one of these shards; then nothing is published.
    """
    log.publish(Change(removed=tuple(entries), added=tuple(entries.values())))


def rows_of(chunk: Chunk) -> Iterator[dict[str, Any]]:
    """Of each row of a chunk its id and the columns of rewards."""
    names = ("row_id", "reward", "breakdown", "recipe", "scored_s")
    columns = [chunk.columns[name].to_pylist() for name in names]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _covers(shard: SealedShard, part: Part, names: tuple[str, ...]) -> bool:
    return set(shard.overlay_columns[part.file]) <= set(names)
