"""A sealed shard, memory-mapped: its rows, what overlays put in their place, and its texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from swift_rlx.errors import StoreError
from swift_rlx.store.chunk import Chunk
from swift_rlx.store.manifest import OVERLAY, ROWS, TEXTS, Part, ShardEntry
from swift_rlx.store.place import Place
from swift_rlx.store.row_columns import row_schema, text_schema
from swift_rlx.store.schema import FORMAT, Batch
from swift_rlx.store.shard_writer import FORMAT_KEY


class SealedShard:
    """The files of a shard, open for reading. They stay readable while it is held, even where they are deleted.

    Raises `StoreError` where a file is missing, has another length than the manifest says, or another format.
    Contents are not checked here: `verify` does that. `overlay_columns`: of each overlay's file.
    """

    def __init__(self, place: Place, entry: ShardEntry) -> None:
        self.entry = entry
        self._place = place
        self._texts = _messages(place, entry.part(TEXTS), [column.name for column in text_schema()])
        covering = [_batches(place, part) for part in entry.overlays]
        self.overlay_columns = {
            part.file: tuple(overlay[0].schema.names if overlay else ())
            for part, overlay in zip(entry.overlays, covering, strict=True)
        }
        self.chunks: list[Chunk] = []
        for number, batch in enumerate(_batches(place, entry.part(ROWS))):
            over: dict[str, Any] = {}
            for overlay in covering:
                over |= {name: overlay[number].column(name) for name in overlay[number].schema.names}
            self.chunks.append(Chunk(batch, over))
        self._refuse_unequal_rows(covering)

    def texts(self, number: int) -> Batch:
        """The texts of its `number`-th chunk, decompressed."""
        import pyarrow as pa

        schema, messages = self._texts
        return pa.ipc.read_record_batch(messages[number], schema)

    def _refuse_unequal_rows(self, covering: list[list[Batch]]) -> None:
        lengths = [chunk.num_rows for chunk in self.chunks]
        others = [[batch.num_rows for batch in overlay] for overlay in covering]
        if (
            sum(lengths) != self.entry.num_rows
            or len(self._texts[1]) != len(lengths)
            or any(other != lengths for other in others)
        ):
            raise StoreError(
                f"the files of shard '{self.entry.name}' of '{self._place.url}' have different rows; `swift-rlx store"
                f" verify {self._place.url} --repair` takes it out and keeps the rest"
            )


def merged(chunk: Chunk) -> Batch:
    """The rows of a chunk as they would be without overlays: these in the place of what they cover."""
    import pyarrow as pa

    schema = row_schema(chunk.columns["logprobs"].type.value_type == pa.float16())
    return pa.RecordBatch.from_arrays([chunk.columns[column.name] for column in schema], schema=schema)


def _batches(place: Place, part: Part) -> list[Batch]:
    import pyarrow as pa

    schema, messages = _messages(place, part, _required(part.kind))
    return [pa.ipc.read_record_batch(message, schema) for message in messages]


def _required(kind: str) -> list[str]:
    return [] if kind == OVERLAY else list(row_schema(True).names)


def _messages(place: Place, part: Part, required: list[str]) -> tuple[Any, list[Any]]:
    """The schema of a file and its record batches, none of them decoded yet."""
    import pyarrow as pa

    path = place.local(part.file, part.num_bytes)
    try:
        source = pa.memory_map(str(path))
        reader = pa.ipc.MessageReader.open_stream(source)
        schema = pa.ipc.read_schema(reader.read_next_message())
        messages = list(_remaining(reader))
        source.close()  # the file's descriptor; what is mapped stays mapped while a message is held
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise StoreError(
            f"'{part.file}' of the store '{place.url}' cannot be read: {error}; `swift-rlx store verify {place.url}"
            " --repair` takes what is damaged out and keeps the rest"
        ) from error
    _check_schema(schema, part, place.url, required)
    return schema, messages


def _remaining(reader: Any) -> Iterator[Any]:
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _check_schema(schema: Any, part: Part, url: str, required: list[str]) -> None:
    metadata: Mapping[bytes, bytes] = schema.metadata or {}
    found = metadata.get(FORMAT_KEY.encode(), b"unknown").decode()
    if found != str(FORMAT):
        raise StoreError(
            f"'{part.file}' of the store '{url}' has format {found}, and this version reads {FORMAT}; read it with the"
            " version that wrote it"
        )
    if missing := [name for name in required if name not in schema.names]:
        raise StoreError(f"'{part.file}' of the store '{url}' lacks the columns {', '.join(missing)}")
