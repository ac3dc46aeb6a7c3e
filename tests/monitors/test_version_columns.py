"""Who made an answer, for the completions table."""

from __future__ import annotations

import numpy as np

from swift_rlx.monitors import COLUMNS, version_columns
from swift_rlx.types import (
    Completion,
    FinishReason,
    Prompt,
    RewardPart,
    Score,
    TrainGroup,
    Trajectory,
    TrajectoryGroup,
)


def test_what_the_environment_said_is_of_no_version():
    prompt = Prompt(5, np.zeros(2, np.int32))
    completion = Completion(
        token_ids=np.arange(4, dtype=np.int32),
        logprobs=np.zeros(4, np.float32),
        policy_steps=np.array([-1, 7, 8, -1], np.int32),
        finish_reason=FinishReason.STOP,
        sampled=np.array([False, True, True, False]),
    )
    group = TrajectoryGroup(prompt, 0, (Trajectory(prompt, 0, completion, Score(1.0)),))
    (row,) = version_columns(TrainGroup(group, (completion.sampled,)), step=9)
    assert [row[name] for name in COLUMNS[:3]] == ["0.7", "0.8", 2]


def test_a_row_says_who_made_the_answer():
    prompt = Prompt(5, np.zeros(2, np.int32))
    completion = Completion(
        token_ids=np.arange(4, dtype=np.int32),
        logprobs=np.zeros(4, np.float32),
        policy_steps=np.array([6, 6, 7, 8], np.int32),
        finish_reason=FinishReason.STOP,
        incarnation=1,
        worker="worker-2",
        submit_s=10.0,
        finish_s=12.5,
    )
    breakdown = (
        RewardPart("accuracy", 1.0, "2.0"),
        RewardPart("format", None),
        RewardPart("judge", 0.5, "7"),
    )
    member = Trajectory(prompt, 0, completion, Score(1.0, breakdown), attempts=3)
    group = TrainGroup(TrajectoryGroup(prompt, 0, (member,)), (np.array([False, False, True, True]),))
    (row,) = version_columns(group, step=9)
    assert tuple(row) == COLUMNS
    assert row == {
        "policy_version_min": "1.6",
        "policy_version_max": "1.8",
        "staleness": 3,
        "trained_tokens": 2,
        "worker": "worker-2",
        "attempts": 3,
        "latency_s": 2.5,
        "reward_versions": "accuracy=2.0, judge=7",
    }
