"""Adds rows to a store, a round at a time: all rows of a round are there, or none.

    writer = store.writer("run-7")
    writer.add(groups)        to partial files, which no reader sees
    writer.seal()             files synced, named, and published in the manifest: the round is there

Rounds of a writer are numbered. A process that starts again under the same name goes on behind the last sealed round
(`next_round`); what was not sealed is gone, and what was cannot be added again. Several writers, in any processes and
on any machines, need different names and nothing else.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType

from swift_rlx.errors import StoreError
from swift_rlx.store.manifest import ROWS, TEXTS, Change, ManifestLog, Part, ShardEntry
from swift_rlx.store.place import Place
from swift_rlx.store.row_columns import (
    RoundPlace,
    is_half_safe,
    row_schema,
    text_schema,
    to_row_batches,
)
from swift_rlx.store.schema import Batch
from swift_rlx.store.shard_writer import ShardWriter
from swift_rlx.store.stored_group import StoredGroup, prompt_number

MAX_BATCH_ROWS = 1024
SHARDS = "shards"


@dataclass(frozen=True, slots=True)
class Buckets:
    """How rows are spread: `count` buckets by prompt; `is_half`: log-probs in half precision where that is safe."""

    count: int
    is_half: bool = True

    def __str__(self) -> str:
        return f"{self.count} buckets and log-probs in {'half' if self.is_half else 'single'} precision"

    def of(self, stored: StoredGroup) -> int:
        """The bucket of a group; the same for every group of its prompt."""
        return prompt_number(stored.group.prompt, stored.prompt_id) % self.count


class OpenShard:
    """A shard that is being written: its files are partial until `finish`."""

    def __init__(self, place: Place, name: str, bucket: int, row_columns: object) -> None:
        self._place = place
        self._name, self._bucket = name, bucket
        self.num_rows = self._num_tokens = 0
        self._writers: dict[str, ShardWriter] = {}
        for kind, schema, compression in ((ROWS, row_columns, None), (TEXTS, text_schema(), "zstd")):
            path = place.partial(self._file(kind))
            self._writers[kind] = ShardWriter(path, {"kind": kind}, schema=schema, compression=compression)

    def add(self, rows: Batch, texts: Batch) -> None:
        """Append rows with their texts."""
        for kind, batch in ((ROWS, rows), (TEXTS, texts)):
            self._writers[kind].add_batch(batch)
            self._writers[kind].flush()
        self.num_rows += rows.num_rows
        self._num_tokens += len(rows.column("token_ids").values)

    def finish(self) -> ShardEntry:
        """Sync the files and give them their names; they are of no store before a manifest names them."""
        parts = []
        for kind, writer in self._writers.items():
            writer.close()
            self._place.put(writer.path, self._file(kind))
            parts.append(Part(kind, self._file(kind), writer.num_bytes, writer.crc32))
        return ShardEntry(self._name, self._bucket, self.num_rows, self._num_tokens, tuple(parts))

    def abandon(self) -> None:
        """Remove the partial files."""
        for writer in self._writers.values():
            writer.abandon()
            writer.path.unlink(missing_ok=True)

    def _file(self, kind: str) -> str:
        return f"{SHARDS}/{self._name}.{kind}.arrow"


class RoundWriter:
    """See the module; `name` identifies the writer among all. One thread at a time. Raises `StoreError`."""

    def __init__(self, place: Place, log: ManifestLog, buckets: Buckets, name: str) -> None:
        if not name or not name.isprintable() or "/" in name or len(name) > 80:
            raise StoreError(
                f"a writer of the store cannot be called {name!r}; use 1 to 80 printable characters without a slash"
            )
        self._place, self._log, self._buckets, self._name = place, log, buckets, name
        self._open: dict[tuple[int, bool], OpenShard] = {}
        self._num_rows = 0
        self.next_round = log.latest().sealed.get(name, -1) + 1

    @property
    def num_rows(self) -> int:
        """Rows of the round that is not sealed yet."""
        return self._num_rows

    def add(self, groups: Iterable[StoredGroup]) -> None:
        """Append whole groups to the round. After an error it is empty again: what it had is to be added anew."""
        waiting: dict[tuple[int, bool], list[StoredGroup]] = {}
        for stored in groups:
            if stored.group.members:
                key = (self._buckets.of(stored), self._buckets.is_half and is_half_safe(stored))
                waiting.setdefault(key, []).append(stored)
        with self._empty_after_error():
            for key, found in waiting.items():
                self._write(key, found)

    def seal(self) -> int:
        """Publish the round; its number. A round without rows is published too: the writer was there.

        Raises `ChangeRefused` where another process seals rounds under the same name; then nothing is published, and
        the round is empty, as after every error.
        """
        number = self.next_round
        with self._empty_after_error():
            entries = tuple(shard.finish() for shard in self._open.values())
            self._log.publish(Change(added=entries, sealed=(self._name, number)))
        self._open, self._num_rows, self.next_round = {}, 0, number + 1
        return number

    def abandon(self) -> None:
        """Forget the round."""
        for shard in self._open.values():
            shard.abandon()
        self._open, self._num_rows = {}, 0

    def __enter__(self) -> RoundWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Forget what was not sealed."""
        self.abandon()

    @contextlib.contextmanager
    def _empty_after_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.abandon()
            raise

    def _write(self, key: tuple[int, bool], groups: list[StoredGroup]) -> None:
        bucket, is_half = key
        if key not in self._open:
            name = new_shard_name(bucket)
            self._open[key] = OpenShard(self._place, name, bucket, row_schema(is_half))
        begin = 0
        while begin < len(groups):
            end, count = begin, 0
            while end < len(groups) and (
                end == begin or count + len(groups[end].group.members) <= MAX_BATCH_ROWS
            ):
                count += len(groups[end].group.members)
                end += 1
            at = RoundPlace(self._name, self.next_round, self._num_rows)
            self._open[key].add(*to_row_batches(groups[begin:end], at, is_half))
            self._num_rows += count
            begin = end


def new_shard_name(bucket: int) -> str:
    """A name that no other shard has, later ones behind earlier ones."""
    return f"{bucket:03d}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
