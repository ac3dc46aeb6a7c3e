"""Stores that fsspec reaches: the same as local ones, with a cache, and only where two writers cannot collide."""

from __future__ import annotations

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from stored_groups import by_order, filled, stored_facts, stored_group

from swift_rlx.errors import StoreError
from swift_rlx.store import TrajectoryStore
from swift_rlx.store.compaction import compact, sweep
from swift_rlx.store.verification import verify


class Overwriting(MemoryFileSystem):
    """A file system whose `create` is none."""

    protocol = "overwriting"

    def pipe_file(self, path, value, mode="overwrite", **options):
        super().pipe_file(path, value, **options)


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield "memory://bucket/answers"
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def test_a_store_in_an_object_store_is_written_compacted_swept_and_verified(tmp_path, memory):
    store = TrajectoryStore.create(memory, cache=tmp_path)
    groups = [stored_group(number) for number in range(12)]
    for begin in range(0, 12, 4):
        filled(store, groups[begin : begin + 4])
    assert not list(tmp_path.rglob("*.partial"))
    other = TrajectoryStore.open(memory, cache=tmp_path / "another machine")
    assert {order: stored_facts(one) for order, one in by_order(other.snapshot()).items()} == {
        one.group.order: stored_facts(one) for one in groups
    }
    before = other.snapshot()
    compact(store.place, store.log)
    replaced = before.manifest.files() - store.manifest().files()
    assert set(sweep(store.place, store.log, keep_s=0, now_s=2e9)) == replaced != set()
    assert verify(other.place, other.manifest()).is_sound
    assert by_order(before).keys() == by_order(other.snapshot()).keys() == set(range(12))


def test_a_store_is_not_put_among_other_files(tmp_path, memory):
    fsspec.filesystem("memory").pipe("/bucket/answers/sub/mine.txt", b"")
    for call in (TrajectoryStore.check_new, lambda url: TrajectoryStore.create(url, cache=tmp_path)):
        with pytest.raises(StoreError, match=r"has no store\.json, but other files, such as 'sub'"):
            call(memory)
    fsspec.filesystem("memory").rm("/bucket/answers/sub", recursive=True)
    fsspec.filesystem("memory").pipe("/bucket/answers/exclusive-0", b"")  # of a process that was killed
    TrajectoryStore.check_new(memory)
    TrajectoryStore.create(memory, cache=tmp_path)
    TrajectoryStore.check_new(memory)


def test_a_file_is_fetched_once(tmp_path, memory, monkeypatch):
    store = filled(TrajectoryStore.create(memory, cache=tmp_path), [stored_group(1)])
    fetched = []
    get = MemoryFileSystem.get_file

    def noted(self, remote, *arguments, **options):
        fetched.append(remote)
        return get(self, remote, *arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "get_file", noted)
    for _ in range(3):
        assert store.snapshot().num_rows == 2
    assert len(fetched) == 2, "rows and texts"


def test_a_file_that_was_cut_on_the_way_is_refused(tmp_path, memory):
    store = filled(TrajectoryStore.create(memory, cache=tmp_path), [stored_group(1)])
    [shard] = store.manifest().shards.values()
    files = fsspec.filesystem("memory")
    path = f"/bucket/answers/{shard.parts[0].file}"
    files.pipe_file(path, files.cat_file(path)[:-7])
    with pytest.raises(StoreError, match=r"bytes of .* --repair"):
        store.snapshot()
    assert [one.shard for one in verify(store.place, store.manifest()).damaged] == [shard]


def test_two_writers_never_publish_the_same_generation(tmp_path, memory):
    stores = [TrajectoryStore.create(memory, cache=tmp_path / name) for name in "ab"]
    for number in range(4):
        filled(stores[number % 2], [stored_group(number)], f"writer {number % 2}")
    assert by_order(stores[0].snapshot()).keys() == {0, 1, 2, 3}
    assert stores[0].manifest().generation == 4


def test_a_file_system_that_overwrites_is_refused(tmp_path):
    fsspec.register_implementation("overwriting", Overwriting, clobber=True)
    with pytest.raises(StoreError, match="its file system overwrites a file that must not exist"):
        TrajectoryStore.create("overwriting://bucket", cache=tmp_path)


def test_a_url_that_nothing_reads_is_refused(tmp_path):
    with pytest.raises(StoreError, match="the store 'nosuch://bucket' cannot be reached"):
        TrajectoryStore.open("nosuch://bucket", cache=tmp_path)
