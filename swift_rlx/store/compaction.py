"""Merges the small shards that many rounds leave, and puts overlays and rows together.

The merged files are new ones. Readers that have the old ones open go on with them; the old ones leave the store with
the generation that names the new ones, and `sweep` deletes them when they have been out of it for a while.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from swift_rlx.store.manifest import Change, ChangeRefused, ManifestLog, ShardEntry
from swift_rlx.store.place import Place
from swift_rlx.store.round_writer import OpenShard, new_shard_name
from swift_rlx.store.row_columns import row_schema, text_schema
from swift_rlx.store.schema import Batch
from swift_rlx.store.sealed_shard import SealedShard, merged

TARGET_BYTES = 256 * 2**20
BATCH_ROWS = 8192
BATCH_TOKENS = 2**24


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did. `refused`: buckets whose shards another process changed meanwhile; nothing is lost."""

    shards_before: int = 0
    shards_after: int = 0
    rows: int = 0
    refused: int = 0


def compact(place: Place, log: ManifestLog, target_bytes: int = TARGET_BYTES) -> Compacted:
    """Merge, bucket by bucket, shards up to about `target_bytes` each. Raises `StoreError`."""
    before = after = rows = refused = 0
    for shards in _mergeable(log.latest().shards.values(), target_bytes):
        entry = _merge(place, shards)
        try:
            log.publish(Change(removed=tuple(shards), added=(entry,)))
        except ChangeRefused:
            refused += 1
            for part in entry.parts:
                place.delete(part.file)
            continue
        before, after, rows = before + len(shards), after + 1, rows + entry.num_rows
    return Compacted(before, after, rows, refused)


def sweep(place: Place, log: ManifestLog, keep_s: float, now_s: float) -> list[str]:
    """Delete the files that left the store at least `keep_s` ago, and those that old that never were of it.

    `now_s`: seconds since 1970. Returns the names of the deleted files.
    """
    manifest = log.latest()
    retired = [file for file, at in manifest.retired.items() if now_s - at >= keep_s]
    named = manifest.files() | set(manifest.retired)
    lost = [
        found.name
        for found in place.files()
        if "/" in found.name and not found.name.endswith(".json")
        if found.name not in named and found.age_s >= keep_s
    ]
    for file in [*retired, *lost]:
        place.delete(file)
    if retired:
        log.publish(Change(swept=tuple(retired)))
    return [*retired, *lost]


def _mergeable(entries: Iterable[ShardEntry], target_bytes: int) -> Iterator[list[ShardEntry]]:
    """Shards of one bucket that together are about as large as they should be; one alone if it has overlays."""
    buckets: dict[int, list[ShardEntry]] = {}
    for entry in entries:
        buckets.setdefault(entry.bucket, []).append(entry)
    for shards in buckets.values():
        run: list[ShardEntry] = []
        for entry in shards:
            if run and sum(one.num_bytes for one in run) + entry.num_bytes > target_bytes:
                yield from _worth_it(run)
                run = []
            run.append(entry)
        yield from _worth_it(run)


def _worth_it(run: list[ShardEntry]) -> Iterator[list[ShardEntry]]:
    if len(run) > 1 or any(entry.overlays for entry in run):
        yield run


def _merge(place: Place, entries: Sequence[ShardEntry]) -> ShardEntry:
    import pyarrow as pa

    shards = [SealedShard(place, entry) for entry in entries]
    is_half = all(
        chunk.columns["logprobs"].type.value_type == pa.float16()
        for shard in shards
        for chunk in shard.chunks
    )
    written = OpenShard(place, new_shard_name(entries[0].bucket), entries[0].bucket, row_schema(is_half))
    with contextlib.ExitStack() as undo:
        undo.callback(written.abandon)
        for rows, texts in _gathered(shards):
            written.add(_joined(rows, row_schema(is_half)), _joined(texts, text_schema()))
        undo.pop_all()
    return written.finish()


def _gathered(shards: Sequence[SealedShard]) -> Iterator[tuple[list[Batch], list[Batch]]]:
    """Whole chunks with their texts, as many at a time as make a batch."""
    rows: list[Batch] = []
    texts: list[Batch] = []
    num_rows = num_tokens = 0
    for shard in shards:
        for number, chunk in enumerate(shard.chunks):
            tokens = len(chunk.columns["token_ids"].values)
            if rows and (num_rows + chunk.num_rows > BATCH_ROWS or num_tokens + tokens > BATCH_TOKENS):
                yield rows, texts
                rows, texts, num_rows, num_tokens = [], [], 0, 0
            rows.append(merged(chunk))
            texts.append(shard.texts(number))
            num_rows, num_tokens = num_rows + chunk.num_rows, num_tokens + tokens
    if rows:
        yield rows, texts


def _joined(batches: Sequence[Batch], schema: Any) -> Batch:
    """One batch of all rows; half precision becomes single where the schema has that."""
    import pyarrow as pa

    table = pa.concat_tables([pa.Table.from_batches([batch]).cast(schema) for batch in batches])
    [joined] = table.combine_chunks().to_batches()
    return joined
