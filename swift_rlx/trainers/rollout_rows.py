"""A picked-up batch as rows that reach every rank: completions, their rewards, and which tokens train."""

import enum
import math
from collections.abc import Sequence, Set

import msgspec
import numpy as np

from swift_rlx.types import FinishReason, TrainBatch, TrainGroup, Trajectory


class Row(msgspec.Struct, frozen=True):
    """One completion of the global generation batch. Arrays are little-endian bytes, one entry per token.

    `rewards`: raw value of each reward that was scored in the pipeline, in the order of their columns; None:
    unscored, or scored at the pick-up. `is_filler`: a copy in the place of an answer that is missing.
    """

    epoch: int
    index: int
    member: int
    token_ids: bytes
    logprobs: bytes
    staleness: bytes
    fresh: bytes
    finish_reason: str
    rewards: list[float | None]
    worker: str = ""
    policy_steps: tuple[int, int] = (0, 0)
    is_filler: bool = False
    turns: str = ""
    """JSON of what a conversation left (`conversations.py`); empty for a single answer."""
    reward: float | None = None
    """Of a stored row: the combined reward that was stored with it."""

    def tokens(self) -> list[int]:
        """Token ids as sampled, environment tokens of a conversation included."""
        return np.frombuffer(self.token_ids, "<i4").tolist()  # type: ignore[no-any-return]

    def behavior_logprobs(self) -> list[float]:
        """Of the sampled tokens."""
        return np.frombuffer(self.logprobs, "<f4").tolist()  # type: ignore[no-any-return]


class Origin(enum.Enum):
    """Where a picked-up batch comes from, and what it is for."""

    FRESH = "fresh"
    STORED = "stored"
    """A generation batch in the place of a fresh one."""
    FILL = "fill"
    """Joins the step that waits for a fresh one."""


class PickedBatch(msgspec.Struct, frozen=True):
    """What rank 0 tells the others. `late`: numbers of the reward columns that are scored at the pick-up.

    `versions`: of each reward that was scored in the pipeline, the same for all rows that train. `prompts`: of a stored
    batch, JSON of the columns of each group's prompt.
    """

    step: int
    waited_s: float
    late: list[int]
    rows: list[Row]
    versions: dict[str, str] = {}
    origin: Origin = Origin.FRESH
    prompts: list[str] = []


def rows_of_batch(
    batch: TrainBatch | None, groups: int, group_size: int, columns: Sequence[str]
) -> list[Row]:
    """`groups` x `group_size` rows, group by group; what is missing is filled with copies that do not train.

    Raises ValueError for a batch without any answer: the caller has nothing to train on.
    """
    picked = (
        []
        if batch is None
        else [_group_rows(group, batch.step, group_size, columns) for group in batch.groups]
    )
    if not picked:
        raise ValueError("a batch without groups has no rows")
    while len(picked) < groups:
        picked.append([msgspec.structs.replace(row, is_filler=True) for row in picked[0]])
    return [row for rows in picked for row in rows]


def leave_out(rows: Sequence[Row], groups: Set[tuple[int, int]]) -> list[Row]:
    """The rows, those of these groups, by (epoch, index), as fillers that do not train."""
    return [
        msgspec.structs.replace(row, is_filler=True) if (row.epoch, row.index) in groups else row
        for row in rows
    ]


def _group_rows(group: TrainGroup, step: int, group_size: int, columns: Sequence[str]) -> list[Row]:
    rows = [
        _row(member, np.asarray(mask), step, columns)
        for member, mask in zip(group.group.members, group.loss_masks, strict=True)
    ]
    filler = msgspec.structs.replace(rows[0], is_filler=True)
    return rows + [filler] * (group_size - len(rows))


def _row(trajectory: Trajectory, loss_mask: np.ndarray, step: int, columns: Sequence[str]) -> Row:
    completion = trajectory.completion
    sampled = np.ones(completion.num_tokens, bool) if completion.sampled is None else completion.sampled
    values = {part.name: part.value for part in trajectory.score.breakdown}
    return Row(
        epoch=trajectory.prompt.epoch,
        index=trajectory.prompt.index,
        member=trajectory.member,
        token_ids=completion.token_ids.astype("<i4").tobytes(),
        logprobs=completion.logprobs[sampled].astype("<f4").tobytes(),
        staleness=(step - completion.policy_steps[sampled]).astype("<i4").tobytes(),
        fresh=loss_mask[sampled].astype(bool).tobytes(),
        finish_reason="length" if completion.finish_reason is FinishReason.LENGTH else "stop",
        rewards=[values.get(name) for name in columns],
        worker=completion.worker,
        policy_steps=(int(completion.policy_steps[0]), int(completion.policy_steps[-1])),
        turns=completion.info.get("turns", ""),  # type: ignore[arg-type]
    )


def reward_matrix(rows: Sequence[Row]) -> list[list[float]]:
    """[N, F] with NaN for what is unscored."""
    return [[math.nan if value is None else value for value in row.rewards] for row in rows]


encode_batch = msgspec.msgpack.Encoder().encode
decode_batch = msgspec.msgpack.Decoder(PickedBatch).decode
