"""The manifest: one order of changes whoever makes them, and nothing of it believed that is torn."""

from __future__ import annotations

import pytest
from stored_groups import by_order, filled, stored_group

from swift_rlx.errors import StoreError
from swift_rlx.store import TrajectoryStore
from swift_rlx.store.manifest import FULL_EVERY, Change, ChangeRefused, ManifestLog, ShardEntry

SHARD = ShardEntry("000-x", 0, 1, 1, ())


def entry(number):
    return ShardEntry(f"000-{number}", 0, number, 1, ())


def test_two_logs_of_one_place_see_the_changes_of_each_other(tmp_path):
    logs = [ManifestLog(TrajectoryStore.create(tmp_path).place) for _ in range(2)]
    for number in range(6):
        assert logs[number % 2].publish(Change(added=(entry(number),))).generation == number + 1
    assert logs[0].latest() == logs[1].latest()
    assert list(logs[0].latest().shards) == [f"000-{number}" for number in range(6)]


def test_a_change_of_what_is_not_there_any_more_is_refused(tmp_path):
    log = ManifestLog(TrajectoryStore.create(tmp_path).place)
    log.publish(Change(added=(SHARD,)))
    changed = ShardEntry("000-x", 0, 2, 1, ())
    log.publish(Change(removed=(SHARD,), added=(changed,)))
    with pytest.raises(ChangeRefused, match="shard '000-x' was changed by another process meanwhile"):
        log.publish(Change(removed=(SHARD,)))
    assert log.latest().generation == 2


def test_a_reader_begins_at_the_newest_full_generation(tmp_path):
    place = TrajectoryStore.create(tmp_path).place
    log = ManifestLog(place)
    for number in range(FULL_EVERY + 3):
        log.publish(Change(added=(entry(number),), sealed=("w", number)))
    log.publish(Change(removed=(entry(5),)))
    expected = log.latest()
    full = tmp_path / "manifest" / f"{FULL_EVERY:08d}.full.json"
    (tmp_path / "manifest" / "00000007.json").rename(tmp_path / "kept")
    assert ManifestLog(place).latest() == expected, "what is before it is not read"
    (tmp_path / "kept").rename(tmp_path / "manifest" / "00000007.json")
    full.write_bytes(full.read_bytes().replace(b"000-3", b"000-4"))
    assert ManifestLog(place).latest() == expected, "altered: the changes are read instead"


def test_an_altered_or_missing_generation_is_an_error_and_not_a_shorter_store(tmp_path):
    store = TrajectoryStore.create(tmp_path)
    for number in range(3):
        filled(store, [stored_group(number)])
    second = tmp_path / "manifest" / "00000002.json"
    whole = second.read_bytes()
    for altered in (whole[:-5], whole.replace(b"num_rows", b"num_cows"), b""):
        second.write_bytes(altered)
        with pytest.raises(StoreError, match=r"generation 2 of the manifest of .* is torn or altered"):
            TrajectoryStore.open(tmp_path).manifest()
    second.unlink()
    with pytest.raises(
        StoreError, match=r"generation 2 of the manifest of .* is missing, though later ones are there"
    ):
        TrajectoryStore.open(tmp_path).manifest()
    second.write_bytes(whole)
    assert by_order(TrajectoryStore.open(tmp_path).snapshot()).keys() == {0, 1, 2}


def test_what_leaves_the_store_is_retired_until_it_is_swept(tmp_path):
    store = filled(TrajectoryStore.create(tmp_path), [stored_group(1)])
    [shard] = store.manifest().shards.values()
    manifest = store.log.publish(Change(removed=(shard,)))
    files = {part.file for part in shard.parts}
    assert (set(manifest.retired), manifest.files()) == (files, set())
    assert store.log.publish(Change(swept=tuple(files))).retired == {}
