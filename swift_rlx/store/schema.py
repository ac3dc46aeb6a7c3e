"""The columns of a trajectory on disk, and groups as Arrow record batches and back. One row is one trajectory.

Arrays of tokens are exact, in the types of `types.py`. Policy steps are kept as runs: `policy_steps` holds the step of
each run, `policy_step_lengths` how many tokens it has. Rows of one group stand together. The prompt itself is not in
it: `prompt_epoch` and `prompt_index` find it in the data. A file may have further columns; readers pass over them.

`pyarrow` is imported where it is used: whoever only imports this package does not pay for it.
"""

from __future__ import annotations

import functools
import itertools
import json
import operator
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from swift_rlx.errors import StoreError
from swift_rlx.types import Completion, FinishReason, Prompt, RewardPart, Score, Trajectory, TrajectoryGroup

FORMAT = 1
"""Version of the columns; in the metadata of each file, under `format`."""
OF_TOKENS = ("token_ids", "logprobs", "policy_steps", "policy_step_lengths", "sampled")

Batch = Any
"""A `pyarrow.RecordBatch`."""


@functools.cache
def columns() -> Any:
    """The `pyarrow.Schema`, without metadata. Only `sampled`, `reward` and the value of a reward part may be null."""
    import pyarrow as pa

    part = [
        pa.field("name", pa.string(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("version", pa.string(), nullable=False),
    ]
    types = {
        "prompt_epoch": pa.int32(),
        "prompt_index": pa.int64(),
        "order": pa.int64(),
        "rounds": pa.int32(),
        "failed": pa.int32(),
        "member": pa.int32(),
        "attempts": pa.int32(),
        "token_ids": pa.list_(pa.int32()),
        "logprobs": pa.list_(pa.float32()),
        "policy_steps": pa.list_(pa.int32()),
        "policy_step_lengths": pa.list_(pa.int32()),
        "sampled": pa.list_(pa.bool_()),
        "incarnation": pa.int32(),
        "finish_reason": pa.string(),
        "worker": pa.string(),
        "submit_s": pa.float64(),
        "start_s": pa.float64(),
        "first_token_s": pa.float64(),
        "finish_s": pa.float64(),
        "scored_s": pa.float64(),
        "reward": pa.float64(),
        "breakdown": pa.list_(pa.struct(part)),
        "info": pa.string(),
    }
    may_be_null = ("sampled", "reward")
    return pa.schema([pa.field(name, type_, name in may_be_null) for name, type_ in types.items()])


@functools.cache
def _row_type() -> Any:
    import pyarrow as pa

    return pa.struct(list(columns()))


def to_batch(groups: Iterable[TrajectoryGroup]) -> Batch:
    """The trajectories of the groups as rows. Raises `StoreError` for what has no place in them."""
    import pyarrow as pa

    try:
        return pa.RecordBatch.from_struct_array(pa.array(rows_of(list(groups)), _row_type()))
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise StoreError(f"a trajectory does not fit into the columns of the store: {error}") from error


def to_groups(batch: Batch) -> tuple[TrajectoryGroup, ...]:
    """The groups of a batch, in order; prompts are stand-ins with nothing but their key. Arrays are views of it."""
    plain = batch.select([name for name in columns().names if name not in OF_TOKENS]).to_pylist()
    tokens = zip(*(_split(batch.column(name)) for name in OF_TOKENS), strict=True)
    rows = list(zip(plain, tokens, strict=True))
    return tuple(_group(list(members)) for _, members in itertools.groupby(rows, key=_group_key))


def checksum(batch: Batch, note: str) -> int:
    """CRC-32 of the batch as it is written, and of the note that goes with it."""
    return zlib.crc32(note.encode(), zlib.crc32(batch.serialize()))


_OF_GROUP = operator.attrgetter("prompt.epoch", "prompt.index", "order", "rounds", "failed")
_OF_MEMBER = operator.attrgetter("member", "attempts", "completion.token_ids", "completion.logprobs")
_OF_COMPLETION = operator.attrgetter(
    "sampled",
    "incarnation",
    "finish_reason._value_",  # what `value` calls, as a function of its own
    "worker",
    "submit_s",
    "start_s",
    "first_token_s",
    "finish_s",
)
_OF_SCORE = operator.attrgetter("scored_s", "score.reward")
_OF_PART = operator.attrgetter("name", "value", "version")


def rows_of(groups: Sequence[TrajectoryGroup]) -> list[tuple[object, ...]]:
    """A row for each trajectory, in the order of `columns()`."""
    members = [(group, _OF_GROUP(group), one) for group in groups for one in group.members]
    runs = _runs([one.completion.policy_steps for _, _, one in members])
    return [
        (
            *of_group,
            *_OF_MEMBER(one),
            *of_runs,
            *_OF_COMPLETION(one.completion),
            *_OF_SCORE(one),
            [_OF_PART(part) for part in one.score.breakdown],
            _info(group, one),
        )
        for (group, of_group, one), of_runs in zip(members, runs, strict=True)
    ]


def _info(group: TrajectoryGroup, one: Trajectory) -> str:
    if not one.completion.info:
        return "{}"
    try:
        return json.dumps(dict(one.completion.info))
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"Completion.info of member {one.member} of prompt {group.prompt.key} cannot be stored ({error}); use"
            " text, numbers, lists and dicts"
        ) from error


def _runs(steps: Sequence[npt.NDArray[np.int32]]) -> Iterator[tuple[list[int], list[int]]]:
    """Of each array the value and the length of each run of equal values."""
    ends = np.cumsum([0, *map(len, steps)])
    whole = np.concatenate([np.zeros(0, np.int32), *steps])
    is_first = np.ones(len(whole) + 1, np.bool_)  # of a run; and one behind the end
    is_first[1:-1] = whole[1:] != whole[:-1]
    is_first[ends] = True
    begins = is_first.nonzero()[0]
    values, lengths = whole[begins[:-1]].tolist(), np.diff(begins).tolist()
    for i, j in itertools.pairwise(begins.searchsorted(ends).tolist()):
        yield values[i:j], lengths[i:j]


def _split(column: Any) -> list[npt.NDArray[Any] | None]:
    """The lists of a list column, None for null."""
    values = column.values.to_numpy(zero_copy_only=False)
    bounds = itertools.pairwise(column.offsets.to_pylist())
    valid = column.is_valid().to_pylist()
    return [
        values[begin:end] if is_there else None for (begin, end), is_there in zip(bounds, valid, strict=True)
    ]


def _group_key(row: tuple[dict[str, Any], object]) -> tuple[int, ...]:
    plain = row[0]
    return (plain["order"], plain["rounds"], plain["prompt_epoch"], plain["prompt_index"])


def _group(rows: Sequence[tuple[dict[str, Any], Any]]) -> TrajectoryGroup:
    first = rows[0][0]
    prompt = Prompt(first["prompt_index"], np.zeros(0, np.int32), first["prompt_epoch"])
    members = tuple(_trajectory(prompt, plain, tokens) for plain, tokens in rows)
    return TrajectoryGroup(prompt, first["order"], members, first["failed"], first["rounds"])


def _trajectory(prompt: Prompt, plain: dict[str, Any], tokens: Any) -> Trajectory:
    token_ids, logprobs, steps, lengths, sampled = tokens
    if logprobs is None:  # a store's rows may lack them, and may have them in half precision
        logprobs = np.full(len(token_ids), np.nan, np.float32)
    completion = Completion(
        token_ids=token_ids,
        logprobs=np.asarray(logprobs, np.float32),
        policy_steps=np.repeat(steps, lengths),
        finish_reason=FinishReason(plain["finish_reason"]),
        incarnation=plain["incarnation"],
        worker=plain["worker"],
        submit_s=plain["submit_s"],
        start_s=plain["start_s"],
        first_token_s=plain["first_token_s"],
        finish_s=plain["finish_s"],
        sampled=sampled,
        info=json.loads(plain["info"]),
    )
    parts = tuple(RewardPart(**part) for part in plain["breakdown"])
    score = Score(plain["reward"], parts)
    return Trajectory(prompt, plain["member"], completion, score, plain["scored_s"], plain["attempts"])
