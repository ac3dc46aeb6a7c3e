"""The files of a shard as columns: what training reads, and the text beside it.

The rows have the columns of `schema.py`, so that whatever reads a journal reads them, and some more. `prompt_ids` is
there once for a group: in its first row, null in the others. So a row with `prompt_ids` begins a group.

Log-probs are in half precision where all of a file's are above `MIN_HALF`. Then a stored value differs from the
engine's by at most 2**-11 of it (2**-7 = 0.0078 at -32, 2**-12 around -0.7), and the sum over a completion by at most
2**-11 of the sum. A file with a smaller one keeps float32.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from swift_rlx.errors import StoreError
from swift_rlx.store.schema import Batch, columns, rows_of, to_groups
from swift_rlx.store.stored_group import StoredGroup, prompt_number, row_base
from swift_rlx.types import Completion, Prompt, SamplingParams, Trajectory

MIN_HALF = -32.0
SAMPLING_COLUMNS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class RoundPlace:
    """Where rows stand: in round `number` of a writer, from the `place`-th row of the round on."""

    writer: str
    number: int
    place: int


@functools.cache
def row_schema(is_half: bool) -> Any:
    """The `pyarrow.Schema` of a shard's rows, uncompressed."""
    import pyarrow as pa

    logprobs = pa.field("logprobs", pa.list_(pa.float16() if is_half else pa.float32()))
    shared = [logprobs if column.name == "logprobs" else column for column in columns()]
    further = {
        "row_id": pa.uint64(),
        "prompt_id": pa.uint64(),
        "prompt_ids": pa.list_(pa.int32()),
        "logprobs_by": pa.string(),
        "writer": pa.string(),
        "round": pa.int32(),
        "engine": pa.string(),
        "recipe": pa.string(),
        "temperature": pa.float32(),
        "top_p": pa.float32(),
        "top_k": pa.int32(),
        "min_p": pa.float32(),
        "repetition_penalty": pa.float32(),
    }
    may_be_null = ("prompt_ids", *SAMPLING_COLUMNS)
    return pa.schema(
        [*shared, *(pa.field(name, type_, name in may_be_null) for name, type_ in further.items())]
    )


@functools.cache
def text_schema() -> Any:
    """The `pyarrow.Schema` of a shard's text, compressed. Null in `columns` and `prompt_key`: as in the row above."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("row_id", pa.uint64(), nullable=False),
            pa.field("text", pa.string()),
            pa.field("columns", pa.string()),
            pa.field("prompt_key", pa.string()),
            pa.field("sampling", pa.string()),
            pa.field("info", pa.string(), nullable=False),
        ]
    )


def is_half_safe(stored: StoredGroup) -> bool:
    """Whether the bound of this module's head holds for the group's log-probs in half precision."""
    lowest = [np.min(one.completion.logprobs, initial=0.0, where=~np.isnan(one.completion.logprobs))
              for one in stored.group.members]  # fmt: skip
    return bool(min(lowest, default=0.0) >= MIN_HALF)


def to_row_batches(groups: Sequence[StoredGroup], at: RoundPlace, is_half: bool) -> tuple[Batch, Batch]:
    """The rows and the texts of groups, row by row. Raises `StoreError` for what has no place in the columns."""
    members = [(stored, one) for stored in groups for one in stored.group.members]
    rows = rows_of([stored.group for stored in groups])
    values: dict[str, list[Any]] = {
        name: [row[at] for row in rows] for at, name in enumerate(columns().names)
    }
    values["logprobs"] = [_logprobs(one.completion, is_half) for _, one in members]
    info, values["info"] = values["info"], ["{}"] * len(members)
    values |= _further_values(groups, members, at)
    texts = {"row_id": values["row_id"], "info": info, **_text_values(groups, members)}
    return _as_batch(values, row_schema(is_half)), _as_batch(texts, text_schema())


def to_stored_group(rows: Batch, texts: Batch | None) -> StoredGroup:
    """The group that the rows are, from its first one on; without `texts` they and the prompt's columns are missing."""
    [group] = to_groups(rows)
    first = rows.slice(0, 1).to_pylist()[0]
    written = [] if texts is None else texts.to_pylist()
    prompt = Prompt(
        group.prompt.index,
        np.asarray(first["prompt_ids"], np.int32),
        group.prompt.epoch,
        json.loads(written[0]["columns"]) if written else {},
    )
    infos = [json.loads(one["info"]) for one in written] or [{}] * len(group.members)
    members = tuple(
        replace(one, prompt=prompt, completion=replace(one.completion, info=info))
        for one, info in zip(group.members, infos, strict=True)
    )
    has_texts = bool(written) and written[0]["text"] is not None
    has_sampling = bool(written) and written[0]["sampling"] is not None
    return StoredGroup(
        replace(group, prompt=prompt, members=members),
        tuple(one["text"] for one in written) if has_texts else (),
        tuple(_sampling(one["sampling"]) for one in written) if has_sampling else (),
        first["engine"],
        written[0]["prompt_key"] if written else "",
        first["recipe"],
    )


def _logprobs(completion: Completion, is_half: bool) -> Any:
    """None where all are missing."""
    logprobs = np.asarray(completion.logprobs)
    if len(logprobs) and np.isnan(logprobs).all():
        return None
    return logprobs.astype(np.float16 if is_half else np.float32)


def _further_values(
    groups: Sequence[StoredGroup], members: Sequence[tuple[StoredGroup, Trajectory]], at: RoundPlace
) -> dict[str, list[Any]]:
    count = len(members)
    base = row_base(at.writer, at.number) + at.place
    sampling = [one for stored in groups for one in (stored.sampling or [None] * len(stored.group.members))]
    numbers = {id(stored): prompt_number(stored.group.prompt, stored.prompt_id) for stored in groups}
    return {
        "row_id": [(base + place) % 2**64 for place in range(count)],
        "prompt_id": [numbers[id(stored)] for stored, _ in members],
        "prompt_ids": _once_a_group(groups, lambda one: np.asarray(one.group.prompt.token_ids, np.int32)),
        "logprobs_by": [""] * count,
        "writer": [at.writer] * count,
        "round": [at.number] * count,
        "engine": [stored.engine for stored, _ in members],
        "recipe": [stored.recipe for stored, _ in members],
        **{
            name: [None if one is None else getattr(one, name) for one in sampling]
            for name in SAMPLING_COLUMNS
        },
    }


def _text_values(
    groups: Sequence[StoredGroup], members: Sequence[tuple[StoredGroup, Trajectory]]
) -> dict[str, list[Any]]:
    none = [None] * len(members)
    texts = [text for stored in groups for text in (stored.texts or none[: len(stored.group.members)])]
    sampling = [
        json.dumps(asdict(one)) if one is not None else None
        for stored in groups
        for one in (stored.sampling or none[: len(stored.group.members)])
    ]
    return {
        "text": texts,
        "columns": _once_a_group(groups, lambda one: _columns_json(one.group.prompt.columns)),
        "prompt_key": _once_a_group(groups, lambda one: one.prompt_id),
        "sampling": sampling,
    }


def _once_a_group(groups: Sequence[StoredGroup], value: Any) -> list[Any]:
    return [
        value(stored) if place == 0 else None
        for stored in groups
        for place in range(len(stored.group.members))
    ]


def _columns_json(found: Mapping[str, object]) -> str:
    for name, value in found.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise StoreError(
                f"the column {name!r} of a prompt cannot be stored ({error}); use text, numbers, lists and dicts, and"
                " paths for images"
            ) from error
    return json.dumps(dict(found), ensure_ascii=False)


def _sampling(text: str) -> SamplingParams:
    found: dict[str, Any] = {
        name: tuple(one) if isinstance(one, list) else one for name, one in json.loads(text).items()
    }
    return SamplingParams(**found)


def _as_batch(values: Mapping[str, list[Any]], schema: Any) -> Batch:
    import pyarrow as pa

    try:
        arrays = [pa.array(values[column.name], column.type) for column in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise StoreError(f"a trajectory does not fit into the columns of the store: {error}") from error
