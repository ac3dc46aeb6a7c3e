"""The directory of published weights: complete or absent, small, private, and gone with its run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from swift_rlx.backends import WeightKind
from swift_rlx.cluster import WeightDirectory, needed_bytes
from swift_rlx.errors import ConfigError
from swift_rlx.types import PolicyVersion


@pytest.fixture
def memory(tmp_path):
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


@pytest.fixture
def directory(memory):
    made = WeightDirectory(shared_memory=memory)
    yield made
    made.remove()


def write(directory, step, kind=WeightKind.FULL):
    with directory.new(PolicyVersion(0, step), kind) as folder:
        (folder / "model.safetensors").write_bytes(b"weights")


def steps(directory):
    return [version.step for version in directory.versions]


def test_a_version_appears_when_it_is_complete(directory):
    version = PolicyVersion(0, 1)
    with directory.new(version) as folder:
        (folder / "a").write_bytes(b"1")
        assert directory.versions == ()
    assert (directory.path(version) / "a").read_bytes() == b"1"
    assert not folder.exists()


def test_nothing_is_left_of_a_version_that_could_not_be_written(directory):
    with pytest.raises(OSError, match="full"), directory.new(PolicyVersion()):
        raise OSError("full")
    assert os.listdir(directory.root) == ["lock"]
    assert directory.versions == ()


def test_a_version_may_be_written_again(directory):
    write(directory, 1)
    with directory.new(PolicyVersion(0, 1)) as folder:
        (folder / "b").touch()
    assert os.listdir(directory.path(PolicyVersion(0, 1))) == ["b"]


def test_what_is_needed_is_kept_and_what_was_overtaken_deleted(directory):
    for step in range(1, 7):
        write(directory, step)
    directory.keep_only({PolicyVersion(0, step) for step in (2, 4, 6)})
    assert steps(directory) == [2, 4, 6]
    assert sorted(os.listdir(directory.root)) == ["full-0.2", "full-0.4", "full-0.6", "lock"]


def test_the_four_newest_adapters_are_kept_as_well(directory):
    for step in range(11, 19):
        write(directory, step, WeightKind.ADAPTER)
    directory.keep_only({PolicyVersion(0, 11), PolicyVersion(0, 18)})
    assert steps(directory) == [11, 15, 16, 17, 18]


def test_it_is_private_and_removed_once(directory):
    assert directory.root.stat().st_mode & 0o777 == 0o700
    directory.remove()
    directory.remove()
    assert not directory.root.exists()


def test_shared_memory_that_is_too_small_is_an_error_without_another_place(memory):
    with pytest.raises(ConfigError, match=r"need 274,877,906,944 MiB, and .*shm has .* free; enlarge it"):
        WeightDirectory(shared_memory=memory, needed_bytes=2**58)


def test_shared_memory_that_is_missing_or_too_small_is_replaced_by_the_named_place_with_a_notice(tmp_path):
    notices = []
    directory = WeightDirectory(
        tmp_path / "out" / "weights", needed_bytes=1, notice=notices.append, shared_memory=tmp_path / "none"
    )
    assert directory.root.parent == tmp_path / "out" / "weights"
    assert len(notices) == 1
    assert "they go through" in notices[0]
    directory.remove()


def test_a_named_place_that_is_too_small_as_well_is_an_error(tmp_path, memory):
    with pytest.raises(ConfigError, match="enlarge one of them"):
        WeightDirectory(tmp_path / "out", needed_bytes=2**60, shared_memory=memory)


def test_what_an_ended_run_left_is_removed_and_that_of_a_living_one_is_not(memory, directory):
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    stale = memory / f"swift-rlx-{os.getuid()}-{ended.pid}-abcd"
    (stale / "full-0.1").mkdir(parents=True)
    container = (
        memory / f"swift-rlx-{os.getuid()}-{os.getpid()}-efgh"
    )  # ours has the number of its process now
    container.mkdir()
    (container / "lock").touch()
    begun = memory / f"swift-rlx-{os.getuid()}-{os.getpid()}-ijkl"  # by a process that has not locked it yet
    begun.mkdir()
    other_user = memory / f"swift-rlx-{os.getuid() + 1}-{ended.pid}-abcd"
    other_user.mkdir()
    elsewhere = memory / f"swift-rlx-{os.getuid()}-{ended.pid}-locked"
    directory.root.rename(elsewhere)  # as if a living process of another container had made it
    WeightDirectory(shared_memory=memory).remove()
    assert not stale.exists()
    assert not container.exists()
    assert begun.exists()
    assert other_user.exists()
    assert elsewhere.exists()
    elsewhere.rename(directory.root)


@pytest.mark.parametrize(("kind", "workers", "versions"), [("full", 1, 4), ("full", 2, 5), ("adapter", 1, 7)])
def test_there_has_to_be_room_for_all_versions_that_are_there_at_a_time(kind, workers, versions):
    header = needed_bytes(0, workers, WeightKind(kind))
    assert needed_bytes(1000, workers, WeightKind(kind)) - header == versions * 1000
