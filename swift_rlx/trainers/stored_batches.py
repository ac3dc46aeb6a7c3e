"""Stored groups as a batch that the ranks get, in the form of a fresh one (`rollout_rows.py`).

What differs from a fresh batch: the reward is the combined one that was stored, so that no reward function is called;
the prompt comes with the batch, since the data set of the run need not have it; and every sampled token trains: the
bound of `--max_staleness` is for fresh ones.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from swift_rlx.errors import StoreError
from swift_rlx.store import StoredGroup
from swift_rlx.trainers.rollout_rows import Origin, PickedBatch, rows_of_batch
from swift_rlx.trainers.stored_rows import may_train
from swift_rlx.types import TrainBatch, TrainGroup, Trajectory

UNKNOWN_AGE = 2**20
"""Staleness of a token of another run. A policy step is an optimizer step of the run that made it, on other weights: in
no other run does the difference of two of them mean anything. It counts as older than all others."""


@dataclass(frozen=True)
class PickedGroup:
    """A stored group that trains now; `is_own`: of this run, whose policy steps tell its age."""

    stored: StoredGroup
    is_own: bool = False


@dataclass(frozen=True)
class BatchShape:
    """`groups` of `group_size` rows each. Of a larger stored group the first members train that may."""

    groups: int
    group_size: int


def stored_batch(
    picked: Sequence[PickedGroup],
    shape: BatchShape,
    step: int,
    columns: Sequence[str] = (),
    origin: Origin = Origin.STORED,
) -> PickedBatch:
    """The batch of these groups at an optimizer step; what its shape lacks is filled with rows that do not train.

    `columns`: names of the rewards whose raw values are shown; no more than that is done with them. Log-probs that are
    missing are NaN in the rows, which `row_alignment` takes for unusable. Raises `StoreError` for a group without a
    member that may train or without the messages of its prompt, and `ValueError` for no group at all.
    """
    groups = [_train_group(one, shape.group_size, step) for one in picked]
    rows = rows_of_batch(TrainBatch(step, tuple(groups)), shape.groups, shape.group_size, columns)
    rewards = [_rewards(group, shape.group_size) for group in groups]
    rewards += rewards[:1] * (shape.groups - len(rewards))
    flat = [reward for of_group in rewards for reward in of_group]
    prompts = [_prompt(one.stored) for one in picked]
    return PickedBatch(
        step=step,
        waited_s=0.0,
        late=[],
        rows=[msgspec.structs.replace(row, reward=reward) for row, reward in zip(rows, flat, strict=True)],
        origin=origin,
        prompts=prompts + prompts[:1] * (shape.groups - len(prompts)),
    )


def _train_group(picked: PickedGroup, group_size: int, step: int) -> TrainGroup:
    group = picked.stored.group
    chosen = [member for member in group.members if may_train(member)][:group_size]
    if not chosen:
        raise StoreError(
            f"the stored group of prompt {group.prompt.key} has no member with a reward and a token to train on"
        )
    members = tuple(member if picked.is_own else _without_age(member, step) for member in chosen)
    masks = tuple(
        np.ones(one.completion.num_tokens, np.bool_)
        if one.completion.sampled is None
        else one.completion.sampled
        for one in members
    )
    return TrainGroup(replace(group, members=members), masks)


def _without_age(member: Trajectory, step: int) -> Trajectory:
    steps = np.full_like(member.completion.policy_steps, step - UNKNOWN_AGE)
    return replace(member, completion=replace(member.completion, policy_steps=steps))


def _rewards(group: TrainGroup, group_size: int) -> list[float | None]:
    rewards = [member.score.reward for member in group.group.members]
    return rewards + rewards[:1] * (group_size - len(rewards))


def _prompt(stored: StoredGroup) -> str:
    columns = stored.group.prompt.columns
    if not columns.get("messages"):
        raise StoreError(
            f"the stored group of prompt {stored.group.prompt.key} has no messages, only token ids, from which"
            " ms-swift cannot make a row to train on; import it with the text of its prompt"
        )
    return json.dumps(dict(columns))
