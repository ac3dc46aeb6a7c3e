"""Batches of stored groups: deterministic, each group often enough and not too often, resumed without loss."""

from __future__ import annotations

from collections import Counter

import pytest
from stored_groups import filled, stored_group

from swift_rlx.errors import StoreError
from swift_rlx.store import BatchRules, GroupBatches, GroupFilter, TrajectoryStore
from swift_rlx.store.compaction import compact


def a_store(tmp_path, count=20, **options):
    return filled(
        TrajectoryStore.create(tmp_path), [stored_group(number, **options) for number in range(count)]
    )


def orders(batches, numbers):
    return [batches.snapshot.group(number).group.order for number in numbers]


def taken(batches, steps):
    return [orders(batches, batches.take(step)) for step in steps]


def test_the_same_seed_gives_the_same_batches_and_another_seed_others(tmp_path):
    store = a_store(tmp_path)
    runs = [taken(GroupBatches(store.snapshot(), BatchRules(8, seed=seed)), range(3)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_every_group_is_used_once_before_one_is_used_twice_and_none_over_max_reuse(tmp_path):
    batches = GroupBatches(a_store(tmp_path).snapshot(), BatchRules(8, max_reuse=2))
    uses = Counter()
    for step in range(5):
        uses.update(orders(batches, batches.take(step)))
        assert set(uses.values()) <= {(step + 1) * 8 // 20, (step + 1) * 8 // 20 + 1}
        assert batches.num_left(step) == 40 - 8 * (step + 1)
    assert set(uses.values()) == {2}
    assert batches.take(5) == ()
    assert batches.num_uses == 40


def test_a_batch_has_no_group_twice_also_where_a_second_use_begins_in_it(tmp_path):
    snapshot = a_store(tmp_path, 10).snapshot()
    for seed in range(10):
        batches = GroupBatches(snapshot, BatchRules(6, seed=seed))
        assert [len(set(batches.take(step))) for step in range(3)] == [6, 6, 6]


def test_the_last_batch_is_short_where_no_more_may_train(tmp_path):
    batches = GroupBatches(a_store(tmp_path).snapshot(), BatchRules(15, max_reuse=1))
    assert [len(found) for found in taken(batches, range(3))] == [15, 5, 0]


def test_the_order_is_even_over_groups(tmp_path):
    snapshot = a_store(tmp_path, 4).snapshot()
    first = Counter(
        orders(batches, batches.take(0))[0]
        for batches in (GroupBatches(snapshot, BatchRules(1, seed=seed)) for seed in range(200))
    )
    assert sum((count - 50) ** 2 / 50 for count in first.values()) < 16.27  # chi-square, 3 degrees, p = 0.001


def test_a_resumed_run_takes_what_the_unbroken_one_takes_whatever_was_sealed_and_compacted_since(tmp_path):
    store = a_store(tmp_path / "s", 12)
    filled(store, [stored_group(number) for number in range(12, 20)])
    rules = BatchRules(6, max_reuse=2, seed=5)
    batches = GroupBatches(store.snapshot(), rules)
    taken(batches, range(3))
    batches.save(tmp_path / "uses.arrow")
    expected = taken(batches, range(3, 7))
    filled(store, [stored_group(number) for number in range(50, 60)], "later")
    assert compact(store.place, store.log).shards_after
    resumed = GroupBatches.restored(store.snapshot(), rules, tmp_path / "uses.arrow")
    assert taken(resumed, range(3, 7)) == expected
    assert resumed.selection.left_out["sealed later"] == 10
    resumed.save(tmp_path / "again.arrow")
    assert GroupBatches.restored(store.snapshot(), rules, tmp_path / "again.arrow").sealed == {"a": 1}


def test_groups_sealed_during_a_run_train_next(tmp_path):
    store = a_store(tmp_path, 6)
    batches = GroupBatches(store.snapshot(), BatchRules(6))
    batches.take(0)
    filled(store, [stored_group(number) for number in range(100, 104)], "b")
    moved = batches.moved_to(store.snapshot())
    found = orders(moved, moved.take(1))
    assert set(found[:4]) == {100, 101, 102, 103}
    assert moved.num_uses == 12
    behind = batches.moved_to(store.snapshot(), {"a": 0})
    assert set(orders(behind, behind.take(1))) == set(range(6)), "another rank may not have seen them yet"


def test_a_state_of_another_store_is_refused(tmp_path):
    batches = GroupBatches(a_store(tmp_path / "a").snapshot(), BatchRules(3))
    batches.take(0)
    batches.save(tmp_path / "uses.arrow")
    other = TrajectoryStore.create(tmp_path / "b").snapshot()
    with pytest.raises(StoreError, match="3 of 3 groups that were trained on are not in the store"):
        GroupBatches.restored(other, BatchRules(3), tmp_path / "uses.arrow")
    (tmp_path / "uses.arrow").write_bytes(b"no arrow")
    with pytest.raises(StoreError, match="holds no state of batches"):
        GroupBatches.restored(other, BatchRules(3), tmp_path / "uses.arrow")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (GroupFilter(), {1, 2, 3}),
        (GroupFilter(min_members=1), {1, 2, 3, 4}),
        (GroupFilter(min_spread=0.5), {1, 3}),
        (GroupFilter(min_best=2.0), {3}),
        (GroupFilter(max_age=3), {2, 3}),
        (GroupFilter(min_spread=1.5, max_age=3), {3}),
    ],
)
def test_filters_let_pass_what_they_say(tmp_path, wanted, expected):
    groups = [
        stored_group(1, (0.0, 1.0), step=2),
        stored_group(2, (1.0, 1.0), step=9),
        stored_group(3, (0.0, None, 2.0), step=7),
        stored_group(4, (5.0, None) if wanted.min_best is None else (None, None), step=4),
    ]
    if wanted.max_age is not None:
        groups.pop()
    snapshot = filled(TrajectoryStore.create(tmp_path), groups).snapshot()
    batches = GroupBatches(snapshot, BatchRules(9, wanted=wanted))
    assert set(orders(batches, batches.take(10))) == expected
    assert sum(batches.selection.left_out.values()) + int(batches.selection.at(0).sum()) == len(groups)


def test_rewards_of_several_recipes_are_never_in_one_batch(tmp_path):
    store = a_store(tmp_path, 3)
    filled(store, [stored_group(number, version="3") for number in (10, 11)], "b")
    with pytest.raises(
        StoreError, match=r"must not be mixed in a batch: 'length@2' \(3 groups\), 'length@3' \(2 groups\)"
    ):
        GroupBatches(store.snapshot(), BatchRules(2))
    batches = GroupBatches(store.snapshot(), BatchRules(9, wanted=GroupFilter(recipe="length@3")))
    assert set(orders(batches, batches.take(0))) == {10, 11}
    with pytest.raises(StoreError, match=r"no group of the store .* has rewards of 'length@4'"):
        GroupBatches(store.snapshot(), BatchRules(9, wanted=GroupFilter(recipe="length@4")))


def test_rules_that_cannot_be_kept_are_refused(tmp_path):
    snapshot = a_store(tmp_path, 1).snapshot()
    for rules in (BatchRules(0), BatchRules(1, max_reuse=0), BatchRules(1, max_reuse=256)):
        with pytest.raises(StoreError, match="are refused; use at least 1"):
            GroupBatches(snapshot, rules)


def test_an_empty_store_gives_empty_batches(tmp_path):
    batches = GroupBatches(TrajectoryStore.create(tmp_path).snapshot(), BatchRules(3))
    assert (batches.take(0), batches.num_left(0)) == ((), 0)
