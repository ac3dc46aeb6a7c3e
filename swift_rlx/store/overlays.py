"""New columns for rows that are sealed: rewards of another version, scores by people, log-probs that were missing.

An overlay is a file of a shard that has some of the columns of its rows, for all of them. Tokens and texts are not
written again. `compact` puts overlays and rows together.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from swift_rlx.errors import StoreError
from swift_rlx.store.manifest import OVERLAY, Change, ManifestLog, Part, ShardEntry
from swift_rlx.store.place import Place
from swift_rlx.store.round_writer import SHARDS
from swift_rlx.store.row_columns import row_schema
from swift_rlx.store.sealed_shard import SealedShard
from swift_rlx.store.shard_writer import ShardWriter
from swift_rlx.store.snapshot import Snapshot
from swift_rlx.store.stored_group import as_text
from swift_rlx.types import FloatArray

COVERABLE = ("logprobs", "logprobs_by", "reward", "breakdown", "recipe", "scored_s")

MAX_NAMED = 3

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


def shards_with(snapshot: Snapshot, row_ids: Iterable[int]) -> list[SealedShard]:
    """The shards that these rows are in. Raises `StoreError` for an id that no row has."""
    unknown = set(row_ids)
    found = []
    for shard in snapshot.shards:
        own = itertools.chain.from_iterable(chunk.row_ids.tolist() for chunk in shard.chunks)
        if here := unknown.intersection(own):
            unknown -= here
            found.append(shard)
    if unknown:
        named = ", ".join(as_text(row_id) for row_id in sorted(unknown)[:MAX_NAMED])
        raise StoreError(
            f"{len(unknown)} trajectory ids are not in the store '{snapshot.url}', such as {named}; give the store that"
            " they are from"
        )
    return found


def add_logprobs(
    place: Place, log: ManifestLog, snapshot: Snapshot, logprobs: Mapping[int, FloatArray], by: str
) -> None:
    """Keep log-probs that were missing, by row id; `by`: what computed them, such as a model and its version.

    Raises `StoreError` for ids that no row has and for a wrong number of log-probs, `ChangeRefused` as
    `publish_overlays`; then nothing is changed.
    """

    def columns(shard: SealedShard, number: int) -> dict[str, list[Any]]:
        chunk = shard.chunks[number]
        ids, makers = chunk.row_ids.tolist(), chunk.columns["logprobs_by"].to_pylist()
        rows = [chunk.row(place) for place in range(chunk.num_rows)]
        for row in rows:
            if row.row_id in logprobs and len(logprobs[row.row_id]) != len(row.token_ids):
                raise StoreError(
                    f"{len(logprobs[row.row_id])} log-probs are given for the {len(row.token_ids)} tokens of trajectory"
                    f" {as_text(row.row_id)}"
                )
        return {
            "logprobs": [_single(logprobs.get(row.row_id, row.logprobs)) for row in rows],
            "logprobs_by": [by if one in logprobs else maker for one, maker in zip(ids, makers, strict=True)],
        }

    names = ("logprobs", "logprobs_by")
    shards = shards_with(snapshot, logprobs)
    publish_overlays(log, {shard.entry: write_overlay(place, shard, names, columns) for shard in shards})


def _single(logprobs: npt.NDArray[Any] | None) -> FloatArray | None:
    return None if logprobs is None else np.asarray(logprobs, np.float32)


def _covers(shard: SealedShard, part: Part, names: tuple[str, ...]) -> bool:
    return set(shard.overlay_columns[part.file]) <= set(names)
