"""Stored completions as samples: which train in which epoch, and their tokens as they were sampled."""

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from answered_store import answered_group

from swift_rlx.store import StoredGroup
from swift_rlx.trainers.offline_run import OfflineRunMixin
from swift_rlx.trainers.row_alignment import align
from swift_rlx.trainers.stored_rows import (
    encoded_as_stored,
    missing_logprobs,
    places_of,
    reward_of,
    row_of,
    sample_of,
)


def members(
    stored: StoredGroup, count: int, epoch: int = 0, max_tokens: int | None = None
) -> list[int | None]:
    places = places_of(stored, count, epoch=epoch, seed=3, group_id=77, max_tokens=max_tokens)
    return [None if place.is_empty else place.member.member for place in places]


def test_a_row_trains_only_with_a_log_prob_for_each_of_its_tokens() -> None:
    trainer: Any = object.__new__(OfflineRunMixin)
    trainer._places = places_of(answered_group(0, 2, tokens=3), 3, epoch=0, seed=0, group_id=1)
    masks = [torch.tensor([[1, 1, 1], [0, 1, 1], [1, 0, 0]])]
    trainer._aligned_rows = align([row_of(place) for place in trainer._places], masks)
    trainer._metrics = {"train": defaultdict(list)}
    trainer.accelerator = SimpleNamespace(device="cpu", gather=lambda values: values)
    trainer.model = SimpleNamespace(training=True)
    trainer.plan = {"objective": "rloo_is"}
    assert trainer.usable_rows(3).tolist() == [True, False, False]
    assert trainer._metrics["train"]["rollout/rows_unusable"] == [pytest.approx(2 / 3)]
    trainer.plan = {"objective": "awac"}
    assert trainer.usable_rows(3).tolist() == [True, True, False]


def test_a_group_smaller_than_its_places_leaves_the_last_ones_empty() -> None:
    assert members(answered_group(0, 2), 4) == [0, 1, None, None]


def test_members_without_a_reward_have_no_place() -> None:
    stored = answered_group(0, rewards=(1.0, None, 0.5, math.nan))
    assert members(stored, 3) == [0, 2, None]


def test_of_a_larger_group_all_members_train_equally_often_over_the_epochs() -> None:
    stored = answered_group(0, 6)
    epochs = [members(stored, 4, epoch) for epoch in range(3)]
    assert all(len(set(one)) == 4 for one in epochs)
    assert sorted(member for one in epochs for member in one if member is not None) == sorted([*range(6)] * 2)
    assert epochs[0] == members(stored, 4, 3), "the order is the same each time around"


def test_a_completion_that_does_not_fit_with_its_prompt_has_no_place() -> None:
    stored = answered_group(0, 3, tokens=5)
    assert members(stored, 3, max_tokens=11) == [0, 1, 2]
    assert members(stored, 3, max_tokens=10) == [None, None, None]


def test_tokens_are_those_of_the_store_and_only_sampled_ones_have_labels() -> None:
    stored = answered_group(5, 2, sampled=(True, False, True))
    [place, *_] = places_of(stored, 2, epoch=0, seed=0, group_id=1)
    sample, completion = sample_of(place, []), stored.group.members[0].completion
    first, second, third = completion.token_ids.tolist()
    prompt = stored.group.prompt.token_ids.tolist()
    tokens = sample.to_template_dict()
    assert tokens["input_ids"] == [*prompt, first, second, third]
    assert tokens["labels"] == [-100] * len(prompt) + [first, -100, third]
    assert tokens["length"] == len(prompt) + 3
    row = row_of(place)
    assert row.behavior_logprobs() == completion.logprobs[[0, 2]].tolist()
    assert not row.is_filler
    assert reward_of(place) == stored.group.members[0].score.reward


def test_an_empty_place_costs_two_tokens_and_has_no_reward() -> None:
    [*_, place] = places_of(answered_group(5, 2), 3, epoch=0, seed=0, group_id=1)
    assert place.is_empty
    assert sample_of(place, []).to_template_dict()["length"] == 2
    assert math.isnan(reward_of(place))
    assert row_of(place).is_filler
    assert len(row_of(place).behavior_logprobs()) == 1


def test_missing_log_probs_are_seen() -> None:
    places = places_of(answered_group(5, 2, with_logprobs=False), 3, epoch=0, seed=0, group_id=1)
    assert missing_logprobs(places).equal(torch.tensor([True, True, False]))


def test_the_template_is_as_it_was_after_an_error_within() -> None:
    class Template:
        def encode(self, inputs: object) -> str:
            return "encoded"

    template = Template()
    with encoded_as_stored(template):
        assert template.encode({"input_ids": [1]}) == {"input_ids": [1]}  # type: ignore[comparison-overlap]
    with pytest.raises(ZeroDivisionError), encoded_as_stored(template):
        int(1 / 0)
    assert template.encode(SimpleNamespace()) == "encoded"
