"""What a run on stored groups alone reads of a store."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from answered_store import answered_group, answered_store

from swift_rlx.errors import StoreError
from swift_rlx.store import GroupFilter, StoredGroup, TrajectoryStore
from swift_rlx.store.compaction import compact
from swift_rlx.store.recipe import Source
from swift_rlx.store.trainable import SourceScores, TrainableGroups, sources_of
from swift_rlx.types import RewardPart


def groups_of(directory, **wanted):
    return TrainableGroups(TrajectoryStore.open(directory).snapshot(), GroupFilter(**wanted))


def filled(directory, groups):
    with TrajectoryStore.create(directory).writer("a") as writer:
        writer.add(groups)
        writer.seal()
    return directory


def test_groups_are_in_the_order_of_their_ids_before_and_after_a_compaction(tmp_path):
    store = answered_store(tmp_path / "s")
    answered_store(tmp_path / "s", name="b", first=12)
    before = groups_of(store)
    opened = TrajectoryStore.open(store)
    compact(opened.place, opened.log)
    after = groups_of(store)
    assert before.digest == after.digest
    assert before.ids.tolist() == sorted(before.ids.tolist()) == after.ids.tolist()
    for group_id in before.ids.tolist():
        one, other = before.group(group_id), after.group(group_id)
        assert one.group.prompt.token_ids.tolist() == other.group.prompt.token_ids.tolist()
        assert before.row_ids(group_id) == after.row_ids(group_id)


def test_the_prompts_columns_go_with_the_groups_ids(tmp_path):
    groups = groups_of(answered_store(tmp_path / "s"))
    found = dict(groups.prompt_columns())
    assert sorted(found) == groups.ids.tolist()
    for group_id, columns in found.items():
        number = groups.group(group_id).group.order
        assert json.loads(columns)["messages"] == [{"role": "user", "content": f"Say {number}"}]


def test_sizes_count_scored_members_and_lengths_belong_to_the_groups(tmp_path):
    kept = answered_group(1, rewards=(1.0, None, 0.0), tokens=5)
    groups = groups_of(filled(tmp_path / "s", [kept, answered_group(2, rewards=(1.0,), tokens=9)]))
    assert groups.sizes.tolist() == [2]
    assert groups.num_rows == 2
    assert groups.lengths().tolist() == [[5, 5, 5], [6, 6, 6]]
    assert groups.left_out["too few scored"] == 1
    with pytest.raises(KeyError):
        groups.group(17)


def test_a_completion_without_a_token_that_trains_does_not_count(tmp_path):
    def masked(number, *masks):
        group = answered_group(number, rewards=(1.0, 0.5, 0.0), tokens=3)
        members = tuple(
            replace(one, completion=replace(one.completion, sampled=mask and np.array(mask)))
            for one, mask in zip(group.group.members, masks, strict=True)
        )
        return replace(group, group=replace(group.group, members=members))

    nothing, last, every = (False,) * 3, (False, False, True), None
    kept = [masked(1, last, nothing, every), masked(2, every, every, every)]
    groups = groups_of(filled(tmp_path / "s", [*kept, masked(3, nothing, every, nothing)]), min_spread=0.6)
    assert sorted(groups.sizes.tolist()) == [2, 3]
    assert groups.left_out["too few scored"] == 1
    [too_even] = [masked(4, every, every, nothing)]
    with pytest.raises(StoreError, match="1 too little spread"):
        groups_of(filled(tmp_path / "t", [too_even]), min_spread=0.6)


def test_missing_log_probs_of_unscored_members_and_of_other_groups_are_not_missed(tmp_path):
    groups = [
        answered_group(1, rewards=(1.0, 0.0)),
        answered_group(2, rewards=(1.0, 0.0, None), with_logprobs=False),
        answered_group(3, rewards=(1.0,), with_logprobs=False),
    ]
    found = groups_of(filled(tmp_path / "s", groups))
    assert found.num_without_logprobs() == 2
    assert found.logprobs_by() == set()


def test_a_store_without_a_group_to_train_says_why(tmp_path):
    TrajectoryStore.create(tmp_path / "empty")
    with pytest.raises(StoreError, match="has no group that may train: it is empty; fill it"):
        groups_of(tmp_path / "empty")
    unscored = filled(tmp_path / "unscored", [answered_group(1, rewards=(None, None))])
    with pytest.raises(StoreError, match=r"1 too few scored; score them with `swift-rlx store score`"):
        groups_of(unscored)


def test_scores_are_on_one_scale_and_a_negative_weight_turns_them(tmp_path):
    recipe = "zscore(dataset): 1*length@1 + -2*cost@1 + 0*shown@1"
    groups = [
        StoredGroup(one.group, recipe=recipe)
        for one in (answered_group(number, rewards=(3.0, 1.0)) for number in range(2))
    ]
    snapshot = TrajectoryStore.open(filled(tmp_path / "s", groups)).snapshot()
    scores = SourceScores(snapshot, recipe)
    assert scores.num_sources == 2
    found = scores.of(0.5, (RewardPart("length", 3.0, "1"), RewardPart("shown", 9.0, "1")))
    assert found[0] == pytest.approx(1.0)
    assert math.isnan(found[1])
    assert math.isnan(scores.of(0.5, (RewardPart("length", 3.0, "2"),))[0])


def test_without_named_sources_the_reward_is_the_score(tmp_path):
    snapshot = TrajectoryStore.open(answered_store(tmp_path / "s", 1)).snapshot()
    assert SourceScores(snapshot, "").of(0.25, ()) == [0.25]
    assert sources_of("a@1+b@2") == (Source("a", "1"), Source("b", "2"))
    assert SourceScores(snapshot, "by hand: good ones").of(0.25, ()) == [0.25]


@pytest.mark.parametrize("how", ["weighted", "zscore of the run", "group of the run, ensemble uwo:0.5"])
def test_the_sources_of_a_run_are_found_whatever_scale_it_kept(tmp_path, how):
    recipe = f"{how}: 1*length@1 + 0.25*accuracy@2 + -1e-05*cost@3"
    expected = (Source("length", "1"), Source("accuracy", "2", 0.25), Source("cost", "3", -1e-5))
    assert sources_of(recipe) == expected
    groups = [StoredGroup(answered_group(one, rewards=(3.0, 1.0)).group, recipe=recipe) for one in range(2)]
    snapshot = TrajectoryStore.open(filled(tmp_path / "s", groups)).snapshot()
    found = SourceScores(snapshot, recipe).of(0.5, (RewardPart("length", 3.0, "1"),))
    assert found == pytest.approx([1.0, math.nan, math.nan], nan_ok=True)


def test_tokens_of_another_tokenizer_are_refused(tmp_path):
    snapshot = groups_of(answered_store(tmp_path / "s")).snapshot
    largest = max(
        max(row.token_ids.max(), row.prompt_ids.max())
        for number in range(snapshot.num_groups)
        for row in snapshot.rows(snapshot.rows_of(number))
    )
    snapshot.check_vocabulary(largest + 1)
    with pytest.raises(StoreError, match=f"the token id {largest}, and the model has {largest} tokens"):
        snapshot.check_vocabulary(largest)
