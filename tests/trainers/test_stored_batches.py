"""Stored groups as the batch that the ranks get: rewards, ages, fillers and prompts."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from swift_rlx.algorithms import loo_advantages
from swift_rlx.errors import StoreError
from swift_rlx.store import StoredGroup
from swift_rlx.trainers.rollout_rows import Origin, decode_batch, encode_batch
from swift_rlx.trainers.row_alignment import align
from swift_rlx.trainers.stored_batches import UNKNOWN_AGE, BatchShape, PickedGroup, stored_batch
from swift_rlx.types import (
    Completion,
    FinishReason,
    Prompt,
    RewardPart,
    Score,
    Trajectory,
    TrajectoryGroup,
)

MESSAGES = [{"role": "user", "content": "one?"}]


def stored(rewards: list[float | None], **completion: Any) -> StoredGroup:
    """Answers of three tokens, made at optimizer steps 4 and 5."""
    prompt = Prompt(7, np.array([1, 2], np.int32), 1, {"messages": MESSAGES, "solution": "1"})
    members = []
    for member, reward in enumerate(rewards):
        ids = np.array([10, 11, 12 + member], np.int32)
        facts = {"logprobs": np.array([-0.5, -1.0, -2.0], np.float32)} | completion
        answer = Completion(
            ids, policy_steps=np.array([4, 4, 5], np.int32), finish_reason=FinishReason.STOP, **facts
        )
        score = Score(reward, (RewardPart("length", 3.0, "1"),))
        members.append(Trajectory(prompt, member, answer, score))
    return StoredGroup(TrajectoryGroup(prompt, 0, tuple(members)))


def test_a_row_has_its_stored_reward_its_age_and_its_prompt() -> None:
    picked = [PickedGroup(stored([1.0, 0.5]), is_own=True), PickedGroup(stored([0.0, -1.0]))]
    batch = decode_batch(encode_batch(stored_batch(picked, BatchShape(2, 2), 9, ["length", "other"])))
    assert batch.origin is Origin.STORED
    assert [row.reward for row in batch.rows] == [1.0, 0.5, 0.0, -1.0]
    assert batch.rows[0].rewards == [3.0, None]
    assert np.frombuffer(batch.rows[1].staleness, "<i4").tolist() == [5, 5, 4]
    assert np.frombuffer(batch.rows[2].staleness, "<i4").tolist() == [UNKNOWN_AGE] * 3
    assert all(np.frombuffer(row.fresh, bool).all() for row in batch.rows)  # whatever --max_staleness is
    assert batch.rows[3].tokens() == [10, 11, 13]
    assert json.loads(batch.prompts[1]) == {"messages": MESSAGES, "solution": "1"}
    assert not any(row.is_filler for row in batch.rows)


def test_a_larger_group_is_cut_to_its_first_scored_members_and_a_smaller_one_is_filled() -> None:
    batch = stored_batch(
        [PickedGroup(stored([None, 0.1, 0.2, 0.3])), PickedGroup(stored([0.7]))], BatchShape(3, 2), 9
    )
    assert [row.member for row in batch.rows] == [1, 2, 0, 0, 1, 2]
    assert [row.reward for row in batch.rows[:3]] == [0.1, 0.2, 0.7]
    assert [row.is_filler for row in batch.rows] == [False, False, False, True, True, True]
    assert len(batch.prompts) == 3


def test_an_answer_without_a_token_that_trains_is_in_nobodys_baseline() -> None:
    group = stored([1.0, 0.0, 0.5, float("nan")])
    one, other, *rest = group.group.members
    vain = replace(other, completion=replace(other.completion, sampled=np.zeros(3, np.bool_)))
    group = replace(group, group=replace(group.group, members=(one, vain, *rest)))
    batch = stored_batch([PickedGroup(group)], BatchShape(1, 3), 6)
    assert [(row.member, row.is_filler) for row in batch.rows] == [(0, False), (2, False), (0, True)]
    usable = align(batch.rows, [torch.ones(3, 3)]).usable_n
    rewards = torch.tensor([row.reward for row in batch.rows])
    assert loo_advantages(rewards, torch.zeros(3, dtype=torch.int64), usable).tolist() == [0.5, -0.5, 0.0]


def test_tokens_of_an_environment_do_not_train() -> None:
    sampled = np.array([True, False, True])
    batch = stored_batch([PickedGroup(stored([1.0], sampled=sampled), is_own=True)], BatchShape(1, 1), 6)
    assert np.frombuffer(batch.rows[0].staleness, "<i4").tolist() == [2, 1]
    assert np.frombuffer(batch.rows[0].fresh, bool).tolist() == [True, True]
    assert batch.rows[0].behavior_logprobs() == [-0.5, -2.0]


def test_what_cannot_train_is_refused() -> None:
    with pytest.raises(StoreError, match="has no member with a reward and a token to train on"):
        stored_batch([PickedGroup(stored([None, None]))], BatchShape(1, 2), 0)
    group = stored([1.0])
    group.group.prompt.columns.pop("messages")  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="has no messages, only token ids"):
        stored_batch([PickedGroup(group)], BatchShape(1, 1), 0)
    with pytest.raises(ValueError, match="a batch without groups has no rows"):
        stored_batch([], BatchShape(1, 1), 0)


@pytest.mark.parametrize(
    ("groups", "group_size", "ranks", "expected"),
    [(2, 4, 1, 1), (32, 8, 1, 4), (32, 8, 4, 4), (4, 4, 2, 1), (12, 3, 4, 4), (64, 1, 3, 6)],
)
def test_a_fill_is_an_eighth_of_a_batch_that_the_ranks_can_share(
    groups: int, group_size: int, ranks: int, expected: int
) -> None:
    from swift_rlx.trainers.fill_training import fill_groups

    found = fill_groups(groups, group_size, ranks)
    assert found == expected
    assert found * group_size % ranks == 0
