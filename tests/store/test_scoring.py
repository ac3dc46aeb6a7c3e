"""Rewards of sealed rows: statistics over shards, recipes, and what is computed again."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from stored_groups import by_order, filled, stored_group

from swift_rlx.errors import StoreError
from swift_rlx.store import BatchRules, GroupBatches, TrajectoryStore
from swift_rlx.store.moments import Moments, zscore
from swift_rlx.store.people_scores import add_scores
from swift_rlx.store.recipe import Recipe, Scale, Source
from swift_rlx.store.rescoring import current_recipe, stored_versions
from swift_rlx.store.scoring import score_store

VALUES = some.lists(some.floats(-1e6, 1e6), max_size=8)


def a_store(tmp_path, rewards=((1.0, 0.0), (3.0, 2.0), (5.0, 4.0)), **options):
    groups = [stored_group(number, each, **options) for number, each in enumerate(rewards)]
    return filled(TrajectoryStore.create(tmp_path), groups)


def rewards_of(store):
    found = by_order(store.snapshot())
    return {order: [one.score.reward for one in found[order].group.members] for order in sorted(found)}


def text_length(snapshot, calls=None):
    """A source that gives the last digit of each row's token ids."""

    def evaluate(wanted):
        if calls is not None:
            calls.append(len(wanted.rows))
        return [float(row.token_ids[0] % 10) for row in snapshot.rows(wanted.rows)]

    return evaluate


@given(some.lists(VALUES, max_size=5))
@settings(max_examples=50, deadline=None)
def test_moments_of_parts_are_those_of_the_whole(parts):
    total = Moments()
    for part in parts:
        total = total.joined(Moments.of(part))
    whole = [value for part in parts for value in part]
    assert total.count == len(whole)
    if whole:
        assert total.mean == pytest.approx(statistics.fmean(whole), abs=1e-6, rel=1e-9)
        assert total.std == pytest.approx(statistics.pstdev(whole), abs=1e-5, rel=1e-6)


def test_z_scores_by_hand():
    scores = [0.2, 0.4, 0.9, 0.5]
    expected = [-1.1766968108, -0.3922322703, 1.5689290811, 0.0]
    assert zscore(scores, Moments.of(scores)) == pytest.approx(expected, abs=1e-9)
    assert zscore([7.0, 7.0], Moments.of([7.0, 7.0])).tolist() == [0.0, 0.0]
    assert zscore([1e9, -1e9, np.nan], Moments(4, 0.0, 4.0)).tolist()[:2] == [3.0, -3.0]
    assert np.isnan(zscore([np.nan], Moments(1, 0.0, 0.0)))[0]
    assert Moments.of([1.0, np.nan, 3.0]) == Moments(2, 2.0, 2.0)


@pytest.mark.parametrize("scale", Scale)
def test_a_recipe_is_its_text(scale):
    recipe = Recipe((Source("accuracy", "1.0"), Source("human", "2026-02 final", -0.25)), scale)
    assert Recipe.parse(str(recipe)) == recipe
    assert Recipe.parse("accuracy@1.0+length@2") is None


def test_a_recipe_that_text_cannot_hold_is_refused():
    for source in (Source("a@b", "1"), Source("a", "1 + 2"), Source("", "1")):
        with pytest.raises(StoreError, match="cannot be named in a store"):
            Recipe((source,))
    with pytest.raises(StoreError, match="at least one source with a weight other than 0"):
        Recipe((Source("a", "1", 0.0),))


def test_a_missing_source_leaves_its_weight_to_the_others():
    recipe = Recipe((Source("a", "1", 1.0), Source("b", "1", 3.0)))
    values = {"a": np.array([1.0, 1.0, np.nan]), "b": np.array([2.0, np.nan, np.nan])}
    assert recipe.rewards(values, {}).tolist()[:2] == [7.0, 4.0]
    assert np.isnan(recipe.rewards(values, {})[2])


def test_scores_over_the_data_set_and_by_query(tmp_path):
    store = a_store(tmp_path)
    source = Source("length", "2")
    done = score_store(store, store.snapshot(), Recipe((source,), Scale.DATASET), {}, again=False)
    whole = zscore(range(6), Moments.of(range(6)))
    found = [reward for each in rewards_of(store).values() for reward in each]
    assert found == pytest.approx(whole[[1, 0, 3, 2, 5, 4]])
    assert (done.moments["length"].mean, done.rows, done.unscored) == (2.5, 6, 0)
    score_store(store, store.snapshot(), Recipe((source,), Scale.QUERY), {}, again=False)
    assert rewards_of(store) == {number: [1.0, -1.0] for number in range(3)}
    assert {one.recipe for one in by_order(store.snapshot()).values()} == {"zscore(query): 1*length@2"}


def test_answers_of_a_prompt_in_several_groups_are_one_query(tmp_path):
    store = filled(a_store(tmp_path, ((1.0, 3.0),)), [stored_group(0, (5.0, 7.0))], "b")
    score_store(store, store.snapshot(), Recipe((Source("length", "2"),), Scale.QUERY), {}, again=False)
    found = sorted(row.reward for row in store.snapshot().rows(range(4)))
    assert found == pytest.approx([-1.3416407865, -0.4472135955, 0.4472135955, 1.3416407865])


def test_only_what_has_no_value_of_the_version_is_computed(tmp_path):
    store, calls = a_store(tmp_path), []
    recipe = Recipe((Source("last", "1"),))
    for _ in range(2):
        snapshot = store.snapshot()
        score_store(store, snapshot, recipe, {"last": text_length(snapshot, calls)}, again=False)
    assert calls == [6], "the second time nothing was due"
    filled(store, [stored_group(9)], "b")
    snapshot = store.snapshot()
    score_store(store, snapshot, recipe, {"last": text_length(snapshot, calls)}, again=False)
    assert calls == [6, 2], "the new group alone"
    score_store(store, store.snapshot(), recipe, {"last": text_length(snapshot, calls)}, again=True)
    assert calls == [6, 2, 8]
    assert rewards_of(store) == {number: [0.0, 1.0] for number in (0, 1, 2, 9)}


def test_a_reward_is_asked_about_whole_groups(tmp_path):
    store, calls = a_store(tmp_path, ((1.0, None), (1.0, 0.0))), []
    snapshot = store.snapshot()
    recipe = Recipe((Source("length", "2"),))
    score_store(store, snapshot, recipe, {"length": text_length(snapshot, calls)}, again=False)
    assert calls == [2], "one answer had no value; the other group is left alone"
    assert rewards_of(store) == {0: [0.0, 1.0], 1: [1.0, 0.0]}


def test_another_version_is_computed_again_and_the_recipe_is_kept(tmp_path):
    store, calls = a_store(tmp_path, version="1", source="last"), []
    recipe = Recipe((Source("last", "1", 2.0),), Scale.DATASET)
    score_store(store, store.snapshot(), recipe, {}, again=False)
    filled(store, [stored_group(9, version="1", source="last")], "b")
    snapshot = store.snapshot()
    known = stored_versions(snapshot)
    assert known == {"last": {"1"}}
    with pytest.raises(StoreError, match="must not be mixed in a batch"):
        GroupBatches(snapshot, BatchRules(2))
    newer = current_recipe(snapshot, known, {"last": "2"})
    assert str(newer) == "zscore(dataset): 2*last@2"
    score_store(store, snapshot, newer, {"last": text_length(snapshot, calls)}, again=False)
    assert calls == [8]
    assert len(GroupBatches(store.snapshot(), BatchRules(9)).take(0)) == 4


def test_rewards_on_the_scale_of_a_run_are_not_made_again_as_a_plain_sum(tmp_path):
    snapshot = a_store(tmp_path, recipe="zscore of the run: 0.5*length@2").snapshot()
    with pytest.raises(StoreError, match=r"'zscore of the run: 0.5\*length@2', whose scale .* store score"):
        current_recipe(snapshot, stored_versions(snapshot), {"length": "3"})


def test_a_row_that_a_source_gives_no_value_is_unscored_and_not_asked_again(tmp_path):
    store = a_store(tmp_path)
    recipe = Recipe((Source("some", "1"),))
    done = score_store(store, store.snapshot(), recipe, {"some": lambda wanted: [None, 1.0] * 3}, again=False)
    assert done.unscored == 3
    assert (
        score_store(store, store.snapshot(), recipe, {"some": lambda wanted: 1 / 0}, again=False).unscored
        == 3
    )


def test_scores_by_people_are_added_by_id_and_rewards_stay(tmp_path):
    store = a_store(tmp_path)
    people = Source("human", "2026")
    row = store.snapshot().rows([3])[0]
    before = rewards_of(store)
    add_scores(store, people, {row.row_id: 4.5})
    assert rewards_of(store) == before
    assert len(GroupBatches(store.snapshot(), BatchRules(9)).take(0)) == 3, "the recipe is that of before"
    done = score_store(store, store.snapshot(), Recipe((people,)), {}, again=False)
    assert (done.unscored, done.moments["human"].count) == (5, 1)
    assert [one.reward for one in store.snapshot().rows(range(6)) if one.row_id == row.row_id] == [4.5]
    with pytest.raises(
        StoreError, match=r"1 trajectory ids are not in the store .* such as r00000000000000ff"
    ):
        add_scores(store, people, {255: 1.0})


def test_what_nothing_computes_needs_one_version(tmp_path):
    store = filled(a_store(tmp_path), [stored_group(9, version="3")], "b")
    snapshot = store.snapshot()
    known = stored_versions(snapshot)
    with pytest.raises(
        StoreError, match="the scores 'length' have the versions 2, 3, and nothing computes them"
    ):
        current_recipe(snapshot, known, {})
    assert str(current_recipe(snapshot, known, {"length": "3"})) == "weighted: 1*length@3"
    with pytest.raises(StoreError, match="has no rewards"):
        current_recipe(TrajectoryStore.create(tmp_path / "empty").snapshot(), {}, {})
