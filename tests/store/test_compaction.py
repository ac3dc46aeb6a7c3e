"""Compaction, sweeping and verification: rows stay what they are, readers go on, damage is found and taken out."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from stored_groups import by_order, filled, stored_facts, stored_group

from swift_rlx.errors import StoreError
from swift_rlx.store import TrajectoryStore
from swift_rlx.store.compaction import Compacted, compact, sweep
from swift_rlx.store.manifest import Change
from swift_rlx.store.overlays import add_logprobs, publish_overlays, write_overlay
from swift_rlx.store.verification import take_out, verify


def many_rounds(tmp_path, rounds=5, buckets=2):
    store = TrajectoryStore.create(tmp_path, buckets=buckets)
    for number in range(rounds):
        filled(store, [stored_group(10 * number + place) for place in range(4)])
    return store


def all_facts(snapshot):
    return {order: stored_facts(one) for order, one in by_order(snapshot).items()}


def test_compaction_merges_shards_and_changes_no_row(tmp_path):
    store = many_rounds(tmp_path)
    before = store.snapshot()
    facts, ids = all_facts(before), set(before.group_ids().tolist())
    done = compact(store.place, store.log)
    after = store.snapshot()
    assert (done.shards_after, done.rows, done.refused) == (2, 40, 0)
    assert [len(shard.chunks) for shard in after.shards] == [1, 1]
    assert (all_facts(after), set(after.group_ids().tolist())) == (facts, ids)
    assert verify(store.place, store.manifest()).is_sound
    assert compact(store.place, store.log) == Compacted(), "nothing is left to merge"


def test_shards_are_merged_up_to_the_size_that_is_asked_for(tmp_path):
    store = many_rounds(tmp_path, buckets=1)
    sizes = [shard.num_bytes for shard in store.manifest().shards.values()]
    compact(store.place, store.log, target_bytes=2 * max(sizes))
    assert [shard.num_rows for shard in store.manifest().shards.values()] == [8, 16, 16]


def test_readers_that_have_the_old_shards_open_go_on(tmp_path):
    store = many_rounds(tmp_path)
    before = store.snapshot()
    facts = all_facts(before)
    compact(store.place, store.log)
    assert sweep(store.place, store.log, keep_s=1000, now_s=time.time()) == []
    deleted = sweep(store.place, store.log, keep_s=0, now_s=time.time() + 1)
    assert set(deleted) == before.manifest.files()
    assert not any((tmp_path / name).exists() for name in deleted)
    assert all_facts(before) == all_facts(store.snapshot()) == facts


def test_what_a_dead_writer_left_is_swept_when_it_is_old(tmp_path):
    store = many_rounds(tmp_path, 1)
    writer = store.writer("dies")
    writer.add([stored_group(77)])
    assert verify(store.place, store.manifest()).lost_files
    assert sweep(store.place, store.log, keep_s=1000, now_s=time.time()) == []
    assert len(sweep(store.place, store.log, keep_s=0, now_s=time.time())) == 2
    assert verify(store.place, store.manifest()).lost_files == ()
    assert store.snapshot().num_rows == 8


def test_a_compaction_that_loses_the_race_leaves_the_store_as_it_is(tmp_path, monkeypatch):
    store = many_rounds(tmp_path, buckets=1)
    publish = store.log.publish

    def beaten(change):
        monkeypatch.undo()
        publish(Change(removed=change.removed[:1]))
        return publish(change)

    monkeypatch.setattr(store.log, "publish", beaten)
    assert compact(store.place, store.log) == Compacted(refused=1)
    assert store.snapshot().num_rows == 32
    assert verify(store.place, store.manifest()).lost_files == ()


def test_overlays_cover_columns_and_compaction_puts_them_in(tmp_path):
    store = many_rounds(tmp_path, 2)
    old = store.snapshot()

    def better(shard, number):
        return {
            "reward": (shard.chunks[number].rewards + 10).tolist(),
            "logprobs": [[-1.25] * 5] * shard.chunks[number].num_rows,
        }

    names = ("reward", "logprobs")
    publish_overlays(
        store.log, {one.entry: write_overlay(store.place, one, names, better) for one in old.shards}
    )
    for _ in range(2):
        new = store.snapshot()
        rows = new.rows(range(new.num_rows))
        assert {row.reward for row in rows} == {10.0, 11.0}
        assert {row.logprobs.tolist()[0] for row in rows} == {-1.25}
        assert [new.group(0).group.members[member].score.reward for member in (0, 1)] == [11.0, 10.0]
        assert verify(store.place, store.manifest()).is_sound
        compact(store.place, store.log)
    assert not any(shard.entry.overlays for shard in store.snapshot().shards)
    assert {row.reward for row in old.rows(range(old.num_rows))} == {0.0, 1.0}, "what was open stays"


def test_a_later_overlay_takes_the_place_of_an_earlier_one(tmp_path):
    store = many_rounds(tmp_path, 1, buckets=1)
    for value in (3.0, 4.0):
        [shard] = store.snapshot().shards
        entry = write_overlay(
            store.place, shard, ("reward",), lambda shard, number, v=value: {"reward": [v] * 8}
        )
        publish_overlays(store.log, {shard.entry: entry})
    [shard] = store.snapshot().shards
    assert len(shard.entry.overlays) == 1
    assert {row.reward for row in store.snapshot().rows(range(8))} == {4.0}
    with pytest.raises(StoreError, match="the columns token_ids of sealed rows cannot be replaced"):
        write_overlay(store.place, shard, ("token_ids",), lambda shard, number: {})


@pytest.mark.parametrize("kind", ["rows", "texts"])
@pytest.mark.parametrize("harm", ["altered", "torn", "missing"])
def test_a_damaged_shard_is_found_and_taken_out_and_the_rest_is_kept(tmp_path, kind, harm):
    store = many_rounds(tmp_path)
    before = store.snapshot()
    victim = before.shards[3].entry
    path = tmp_path / victim.part(kind).file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.unlink()
    if harm != "missing":
        path.write_bytes(data if harm == "altered" else data[:-9])
    found = verify(store.place, store.manifest())
    assert [damage.shard for damage in found.damaged] == [victim]
    assert not found.is_sound
    if harm != "altered":
        with pytest.raises(StoreError, match=r"cannot be read|bytes of"):
            store.snapshot()
    take_out(store.log, found.damaged)
    assert verify(store.place, store.manifest()).is_sound
    assert store.snapshot().num_rows == 40 - victim.num_rows
    lost = {int(group) for group in np.asarray(before.shards[3].chunks[0].columns["order"])}
    assert set(by_order(store.snapshot())) == set(by_order(before)) - lost


def test_rows_that_are_there_twice_are_found(tmp_path):
    store = many_rounds(tmp_path, 1, buckets=1)
    [shard] = store.manifest().shards.values()
    store.log.publish(
        Change(added=(type(shard)("000-copy", 0, shard.num_rows, shard.num_tokens, shard.parts),))
    )
    found = verify(store.place, store.manifest())
    assert (found.twice, found.is_sound) == (8, False)


def test_log_probs_that_were_missing_are_kept_once_computed_and_marked(tmp_path):
    bare = [without_logprobs(stored_group(number)) for number in (1, 2)]
    store = filled(TrajectoryStore.create(tmp_path, buckets=1), [*bare, stored_group(3)])
    snapshot = store.snapshot()
    missing = [row for row in snapshot.rows(range(6)) if row.logprobs is None]
    assert len(missing) == 4
    computed = {row.row_id: np.full(5, -2.0, np.float32) for row in missing[:3]}
    with pytest.raises(StoreError, match="4 log-probs are given for the 5 tokens of trajectory r"):
        add_logprobs(store.place, store.log, snapshot, {missing[0].row_id: np.zeros(4, np.float32)}, "step 0")
    add_logprobs(store.place, store.log, snapshot, computed, "step 0")
    for _ in range(2):
        now = store.snapshot()
        rows = {row.row_id: row for row in now.rows(range(6))}
        assert [rows[row.row_id].logprobs.tolist() for row in missing[:3]] == [[-2.0] * 5] * 3
        assert rows[missing[3].row_id].logprobs is None
        assert sorted(now.chunks[0].columns["logprobs_by"].to_pylist()) == [
            "",
            "",
            "",
            "step 0",
            "step 0",
            "step 0",
        ]
        compact(store.place, store.log)


def without_logprobs(stored):
    """The group as a log without log-probs has it."""
    members = tuple(
        replace(one, completion=replace(one.completion, logprobs=np.full(5, np.nan, np.float32)))
        for one in stored.group.members
    )
    return replace(stored, group=replace(stored.group, members=members))
