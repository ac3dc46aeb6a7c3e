"""The records: frozen, and a completion that cannot be used says why."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from swift_rlx import types
from swift_rlx.types import Completion, FinishReason, PolicyVersion, Prompt


def completion(**changes):
    arrays = {
        "token_ids": np.arange(3, dtype=np.int32),
        "logprobs": np.full(3, -1.0, dtype=np.float32),
        "policy_steps": np.zeros(3, dtype=np.int32),
    }
    return Completion(**{**arrays, "finish_reason": FinishReason.STOP, **changes})


def test_every_record_is_frozen_and_slotted():
    records = [kind for kind in vars(types).values() if dataclasses.is_dataclass(kind)]
    assert len(records) == 12
    for kind in records:
        assert kind.__dataclass_params__.frozen, kind
        assert not hasattr(kind, "__dict__") or "__slots__" in vars(kind), kind


def test_a_complete_answer_has_no_fault():
    assert completion().fault() is None


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"logprobs": np.zeros(7, dtype=np.float32)}, "7 log-probs for 3 tokens"),
        ({"logprobs": np.zeros(0, dtype=np.float32)}, "0 log-probs for 3 tokens"),
        ({"policy_steps": np.zeros(2, dtype=np.int32)}, "2 policy versions for 3 tokens"),
        (
            {"logprobs": np.array([0, np.nan, 0], dtype=np.float32)},
            "no finite log-prob for 1 of 3 sampled tokens",
        ),
        ({"sampled": np.ones(2, dtype=np.bool_)}, "2 marks of sampled tokens for 3 tokens"),
        ({"sampled": np.zeros(3, dtype=np.bool_)}, "no token of its own"),
        (
            {
                "sampled": np.array([True, False, True]),
                "logprobs": np.array([-1, -1, np.nan], dtype=np.float32),
            },
            "no finite log-prob for 1 of 2 sampled tokens",
        ),
        ({"token_ids": np.zeros(0, dtype=np.int32)}, "no token"),
    ],
)
def test_an_answer_that_cannot_train_says_why(changes, fault):
    assert completion(**changes).fault() == fault


def test_a_token_of_the_environment_needs_no_log_prob_and_no_version():
    answer = completion(
        sampled=np.array([True, False, True]),
        logprobs=np.array([-1, np.nan, -1], dtype=np.float32),
        policy_steps=np.array([4, -1, 5], dtype=np.int32),
    )
    assert answer.fault() is None
    assert (answer.num_tokens, answer.num_sampled, answer.sampled_steps.tolist()) == (3, 2, [4, 5])


def test_versions_are_ordered_by_incarnation_then_step():
    assert PolicyVersion(0, 9) < PolicyVersion(1, 0) < PolicyVersion(1, 1)
    assert str(PolicyVersion(2, 30)) == "2.30"


def test_a_prompt_is_known_by_epoch_and_index():
    assert Prompt(4, np.zeros(1, dtype=np.int32), epoch=2).key == (2, 4)
