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
import zlib
from collections.abc import Iterable, Sequence
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


def to_batch(groups: Iterable[TrajectoryGroup]) -> Batch:
    """The trajectories of the groups as rows. Raises `StoreError` for what has no place in them."""
    import pyarrow as pa

    rows = [_row(group, member) for group in groups for member in group.members]
    try:
        return pa.RecordBatch.from_pylist(rows, schema=columns())
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


def _row(group: TrajectoryGroup, one: Trajectory) -> dict[str, object]:
    completion = one.completion
    steps, lengths = _runs(np.asarray(completion.policy_steps, np.int32))
    return {
        "prompt_epoch": group.prompt.epoch,
        "prompt_index": group.prompt.index,
        "order": group.order,
        "rounds": group.rounds,
        "failed": group.failed,
        "member": one.member,
        "attempts": one.attempts,
        "token_ids": np.asarray(completion.token_ids, np.int32),
        "logprobs": np.asarray(completion.logprobs, np.float32),
        "policy_steps": steps,
        "policy_step_lengths": lengths,
        "sampled": completion.sampled,
        "incarnation": completion.incarnation,
        "finish_reason": completion.finish_reason.value,
        "worker": completion.worker,
        "submit_s": completion.submit_s,
        "start_s": completion.start_s,
        "first_token_s": completion.first_token_s,
        "finish_s": completion.finish_s,
        "scored_s": one.scored_s,
        "reward": one.score.reward,
        "breakdown": [
            {"name": part.name, "value": part.value, "version": part.version} for part in one.score.breakdown
        ],
        "info": _info(group, one),
    }


def _info(group: TrajectoryGroup, one: Trajectory) -> str:
    try:
        return json.dumps(dict(one.completion.info))
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"Completion.info of member {one.member} of prompt {group.prompt.key} cannot be stored ({error}); use"
            " text, numbers, lists and dicts"
        ) from error


def _runs(steps: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The value and the length of each run of equal values."""
    is_first = np.ones(len(steps), np.bool_)
    is_first[1:] = steps[1:] != steps[:-1]
    begins = np.flatnonzero(is_first)
    return steps[begins], np.diff(begins, append=len(steps)).astype(np.int32)


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
    completion = Completion(
        token_ids=token_ids,
        logprobs=logprobs,
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
