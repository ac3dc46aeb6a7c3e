"""The sealed rows of a store at one generation of its manifest, memory-mapped. What is sealed later is not in it.

    snapshot = store.snapshot()
    snapshot.rows(numbers)         what training reads of these rows, as views of the files
    snapshot.group(number)         a whole group as it was added, with its texts

Rows are numbered through all shards, and so are groups; the rows of a group stand together. Numbers mean something
within one snapshot only: elsewhere a row is known by its `row_id`, a group by that of its first row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swift_rlx.errors import StoreError
from swift_rlx.store.chunk import Chunk, StoredRow
from swift_rlx.store.manifest import Manifest
from swift_rlx.store.place import Place
from swift_rlx.store.row_columns import to_stored_group
from swift_rlx.store.schema import Batch
from swift_rlx.store.sealed_shard import SealedShard, merged
from swift_rlx.store.stored_group import StoredGroup

LongArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a chunk is: its shard, and its number there."""

    shard: SealedShard
    number: int


class Snapshot:
    """See the module. `url`: of the store. Raises `StoreError` where a shard cannot be opened.

    `before`: an earlier snapshot of the store, whose shards are not opened again.
    """

    def __init__(self, place: Place, manifest: Manifest, before: Snapshot | None = None) -> None:
        self.url = place.url
        self.manifest = manifest
        is_open = {} if before is None else {shard.entry.name: shard for shard in before.shards}
        self.shards: list[SealedShard] = [
            found
            if (found := is_open.get(entry.name)) is not None and found.entry == entry
            else SealedShard(place, entry)
            for entry in manifest.shards.values()
        ]
        self._homes = [_Home(shard, number) for shard in self.shards for number in range(len(shard.chunks))]
        self.chunks: list[Chunk] = [home.shard.chunks[home.number] for home in self._homes]
        lengths = [chunk.num_rows for chunk in self.chunks]
        self.chunk_begins: LongArray = np.cumsum([0, *lengths], dtype=np.int64)
        begins = [chunk.group_begins() + start for chunk, start in zip(self.chunks, self.chunk_begins)]  # noqa: B905
        self.group_begins: LongArray = np.concatenate([*begins, self.chunk_begins[-1:]])
        self._texts: tuple[int, Batch] | None = None

    @property
    def num_rows(self) -> int:
        return int(self.chunk_begins[-1])

    @property
    def num_groups(self) -> int:
        return len(self.group_begins) - 1

    def rows(self, numbers: Iterable[int]) -> list[StoredRow]:
        """What training reads of these rows, in their order. No more than these rows' bytes are touched."""
        wanted = np.asarray(numbers, np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < self.num_rows:
            raise IndexError(f"rows {wanted.min()} to {wanted.max()} are asked of {self.num_rows}")
        places = np.searchsorted(self.chunk_begins, wanted, "right") - 1
        inside = wanted - self.chunk_begins[places]
        chunks = self.chunks
        return [chunks[at].row(place) for at, place in zip(places.tolist(), inside.tolist(), strict=True)]

    def check_vocabulary(self, size: int) -> None:
        """Raise `StoreError` where a prompt or an answer has a token that a model with so many tokens does not have."""
        import pyarrow.compute as pc

        tokens = [
            pc.max(chunk.columns[name].values).as_py()
            for chunk in self.chunks
            for name in ("token_ids", "prompt_ids")
        ]
        largest = max((one for one in tokens if one is not None), default=-1)
        if largest >= size:
            raise StoreError(
                f"the store '{self.url}' has the token id {largest}, and the model has {size} tokens: another tokenizer"
                " filled it; train the model that it was filled for, or import its texts for this one"
            )

    def rows_of(self, group: int) -> range:
        """The numbers of a group's rows."""
        return range(int(self.group_begins[group]), int(self.group_begins[group + 1]))

    def group(self, number: int, *, with_texts: bool = True) -> StoredGroup:
        """A group as it was added, with the rewards of now; without texts it has none, and no columns of the prompt."""
        rows = self.rows_of(number)
        at = int(np.searchsorted(self.chunk_begins, rows.start, "right")) - 1
        inside = slice(rows.start - int(self.chunk_begins[at]), rows.stop - int(self.chunk_begins[at]))
        texts = _some(self._texts_of(at), inside) if with_texts else None
        return to_stored_group(_some(merged(self.chunks[at]), inside), texts)

    def writer_of(self, group: int) -> str:
        """Who sealed a group."""
        row = int(self.group_begins[group])
        at = int(np.searchsorted(self.chunk_begins, row, "right")) - 1
        name: str = self.chunks[at].columns["writer"][row - int(self.chunk_begins[at])].as_py()
        return name

    def num_without_logprobs(self) -> int:
        """Rows whose log-probs are missing."""
        return sum(chunk.columns["logprobs"].null_count for chunk in self.chunks)

    def groups(self, numbers: Iterable[int], *, with_texts: bool = True) -> Iterator[StoredGroup]:
        """These groups, in their order."""
        return (self.group(number, with_texts=with_texts) for number in numbers)

    def prompt_columns(self) -> Iterator[str | None]:
        """The columns of each group's prompt as JSON, in the order of the groups."""
        import pyarrow as pa

        for at, chunk in enumerate(self.chunks):
            columns = self._texts_of(at).column("columns")
            yield from columns.take(pa.array(chunk.group_begins())).to_pylist()

    def group_ids(self) -> npt.NDArray[np.uint64]:
        """The id of each group, [num_groups]: the `row_id` of its first row."""
        found = [chunk.row_ids[chunk.group_begins()] for chunk in self.chunks]
        return np.concatenate([np.zeros(0, np.uint64), *found])

    def _texts_of(self, at: int) -> Batch:
        """The texts of a chunk; those of the last one asked for are kept."""
        if self._texts is None or self._texts[0] != at:
            home = self._homes[at]
            self._texts = (at, home.shard.texts(home.number))
        return self._texts[1]


def _some(batch: Batch, rows: slice) -> Batch:
    """A copy of these rows alone: a slice would carry the whole batch along."""
    return batch.take(list(range(rows.start, rows.stop)))
