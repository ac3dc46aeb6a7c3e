"""Rounds of rows: what is sealed is there, exactly once and exactly as it was; everything else is not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from sandbox import REPOSITORY
from stored_groups import by_order, filled, groups, stored_facts, stored_group

from swift_rlx.errors import StoreError
from swift_rlx.store import StoredGroup, TrajectoryStore, read_shard
from swift_rlx.store.manifest import ROWS
from swift_rlx.store.place import LocalPlace
from swift_rlx.store.row_columns import MIN_HALF
from swift_rlx.types import Prompt, SamplingParams

TEXT = some.text(max_size=6)


def with_logprobs(stored, logprobs):
    """The group with these log-probs in each member."""
    members = tuple(
        replace(one, completion=replace(one.completion, logprobs=np.asarray(logprobs, np.float32)))
        for one in stored.group.members
    )
    return replace(stored, group=replace(stored.group, members=members))


@some.composite
def stored_groups(draw, order):
    group = draw(groups(order=some.just(order)))
    prompt = replace(
        group.prompt,
        token_ids=np.asarray(draw(some.lists(some.integers(0, 9), max_size=3)), np.int32),
        columns=draw(some.dictionaries(TEXT, TEXT | some.none() | some.lists(some.integers()), max_size=2)),
    )
    group = replace(group, prompt=prompt, members=tuple(replace(one, prompt=prompt) for one in group.members))
    count = len(group.members)
    texts = draw(some.just(()) | some.tuples(*[TEXT] * count))
    params = some.builds(
        SamplingParams,
        temperature=some.floats(0, 2),
        stop=some.tuples(TEXT),
        barred_token_ids=some.tuples(some.integers(0, 9)),
    )
    return StoredGroup(
        group, texts, draw(some.just(()) | some.tuples(*[params] * count)), draw(TEXT), draw(TEXT), draw(TEXT)
    )


@given(
    some.integers(0, 4).flatmap(lambda count: some.tuples(*[stored_groups(order) for order in range(count)]))
)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_groups_come_back_bit_for_bit(tmp_path_factory, given_groups):
    store = TrajectoryStore.create(tmp_path_factory.mktemp("s"), is_half=False)
    found = by_order(filled(store, given_groups).snapshot())
    assert {order: stored_facts(one) for order, one in found.items()} == {
        one.group.order: stored_facts(one) for one in given_groups
    }


def test_rows_that_are_not_sealed_are_not_there(tmp_path):
    store = TrajectoryStore.create(tmp_path)
    writer = store.writer("a")
    writer.add([stored_group(1)])
    assert (writer.num_rows, store.snapshot().num_rows) == (2, 0)
    before = store.snapshot()
    assert writer.seal() == 0
    assert (before.num_rows, store.snapshot().num_rows) == (0, 2)
    writer.add([stored_group(2)])
    writer.abandon()
    assert [path.name for path in tmp_path.rglob("*.partial")] == []
    assert store.snapshot().num_rows == 2


def test_a_round_writes_only_what_is_new(tmp_path):
    store = filled(TrajectoryStore.create(tmp_path), [stored_group(number) for number in range(20)])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.arrow")}
    filled(store, [stored_group(99)])
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.arrow")}
    assert before.items() <= after.items()
    assert len(after) - len(before) == 2, "rows and texts of one bucket"


def test_a_writer_that_starts_again_goes_on_behind_its_last_sealed_round(tmp_path):
    store = filled(TrajectoryStore.create(tmp_path), [stored_group(1)], "run")
    second = TrajectoryStore.open(tmp_path)
    assert (second.writer("run").next_round, second.writer("other").next_round) == (1, 0)
    rivals = [store.writer("run"), second.writer("run")]
    for rival in rivals:
        rival.add([stored_group(2)])
    assert rivals[0].seal() == 1
    with pytest.raises(StoreError, match="round 1 of the writer 'run' is refused, its next one is 2"):
        rivals[1].seal()
    assert by_order(store.snapshot()).keys() == {1, 2}
    assert store.snapshot().num_rows == 4


def test_row_ids_are_of_the_round_and_never_twice(tmp_path):
    store = TrajectoryStore.create(tmp_path)
    for name in ("a", "b", "a"):
        filled(store, [stored_group(1), stored_group(2)], name)
    ids = [row.row_id for row in store.snapshot().rows(range(12))]
    assert len(set(ids)) == 12


def test_all_groups_of_a_prompt_are_in_one_bucket(tmp_path):
    store = TrajectoryStore.create(tmp_path, buckets=3)
    for name in ("a", "b"):
        filled(store, [stored_group(number) for number in range(30)], name)
    buckets = {}
    for shard in store.snapshot().shards:
        for chunk in shard.chunks:
            for prompt in chunk.fixed("prompt_id").tolist():
                buckets.setdefault(prompt, set()).add(shard.entry.bucket)
    assert len(buckets) == 30
    assert all(len(found) == 1 for found in buckets.values())
    assert len(set.union(*buckets.values())) == 3


def test_a_prompt_id_takes_the_place_of_the_tokens(tmp_path):
    same = [replace(stored_group(number), prompt_id="problem 5") for number in (1, 2)]
    rows = filled(TrajectoryStore.create(tmp_path), [*same, stored_group(1)]).snapshot().rows(range(6))
    assert len({row.prompt_id for row in rows}) == 2


def test_half_precision_keeps_to_its_bound(tmp_path):
    logprobs = -np.geomspace(1e-9, -MIN_HALF, 500).astype(np.float32)
    stored = with_logprobs(stored_group(1, tokens=500), logprobs)
    [row, _] = filled(TrajectoryStore.create(tmp_path), [stored]).snapshot().rows([0, 1])
    assert row.logprobs.dtype == np.float16
    error = np.abs(row.logprobs.astype(np.float64) - logprobs)
    assert (error <= np.maximum(2.0**-11 * np.abs(logprobs), 2.0**-25)).all()
    assert error.max() <= 2.0**-7
    assert error.max() > 2.0**-9, "the bound is not idle"


def test_log_probs_that_half_precision_would_bend_are_kept_exactly(tmp_path):
    exact = [with_logprobs(stored_group(1), [-0.1, -33.3, -0.2, -0.3, -0.4])]
    store = filled(TrajectoryStore.create(tmp_path / "a"), [*exact, stored_group(2)])
    kinds = {
        order: one.group.members[0].completion.logprobs.tolist()
        for order, one in by_order(store.snapshot()).items()
    }
    assert kinds[1] == np.float32([-0.1, -33.3, -0.2, -0.3, -0.4]).tolist()
    assert {row.logprobs.dtype.name for row in store.snapshot().rows(range(4))} == {"float16", "float32"}
    always = filled(TrajectoryStore.create(tmp_path / "b", is_half=False), [stored_group(2)])
    assert always.snapshot().rows([0])[0].logprobs.dtype == np.float32


def test_missing_log_probs_are_missing_and_not_zero(tmp_path):
    stored = with_logprobs(stored_group(1), [np.nan] * 5)
    snapshot = filled(TrajectoryStore.create(tmp_path), [stored]).snapshot()
    assert snapshot.rows([0])[0].logprobs is None
    completion = snapshot.group(0).group.members[0].completion
    assert np.isnan(completion.logprobs).all()
    assert "no finite log-prob" in completion.fault()


def test_what_training_reads_of_a_row_is_what_the_group_says(tmp_path):
    plain = stored_group(3, (0.5, None, 1.5), step=4)
    masks = [None, np.array([True, False, True, True, False]), np.array([False, False, True, True, True])]
    members = [
        replace(one, completion=replace(one.completion, sampled=mask))
        for one, mask in zip(plain.group.members, masks, strict=True)
    ]
    stored = replace(plain, group=replace(plain.group, members=tuple(members)))
    snapshot = filled(TrajectoryStore.create(tmp_path), [stored_group(1), stored, stored_group(2)]).snapshot()
    for number in range(snapshot.num_groups):
        group = snapshot.group(number).group
        for row, one in zip(snapshot.rows(snapshot.rows_of(number)), group.members, strict=True):
            assert row.prompt_ids.tolist() == group.prompt.token_ids.tolist()
            assert row.token_ids.tolist() == one.completion.token_ids.tolist()
            assert row.logprobs.tolist() == one.completion.logprobs.tolist()
            assert (
                np.repeat(row.policy_steps, row.policy_step_lengths).tolist()
                == one.completion.policy_steps.tolist()
            )
            assert (row.member, row.reward) == (one.member, one.score.reward)
            assert row.temperature == pytest.approx(0.7)
            expected = one.completion.sampled
            assert (row.loss_mask is None) == (expected is None)
            assert expected is None or row.loss_mask.tolist() == expected.tolist()


def test_rows_outside_are_refused(tmp_path):
    snapshot = filled(TrajectoryStore.create(tmp_path), [stored_group(1)]).snapshot()
    for wanted in ([2], [-1]):
        with pytest.raises(IndexError, match="are asked of 2"):
            snapshot.rows(wanted)


def test_the_reader_of_journals_reads_a_shard_too(tmp_path):
    store = filled(TrajectoryStore.create(tmp_path, buckets=1), [stored_group(1), stored_group(2)])
    [shard] = store.manifest().shards.values()
    found = read_shard(tmp_path / shard.part(ROWS).file)
    assert [group.order for unit in found.units for group in unit.groups] == [1, 2]
    assert found.cut_bytes == 0


def test_what_cannot_be_stored_is_refused_by_name(tmp_path):
    store = TrajectoryStore.create(tmp_path)
    stored = stored_group(1)
    picture = replace(
        stored,
        group=replace(stored.group, prompt=Prompt(1, np.ones(2, np.int32), columns={"image": object()})),
    )
    with (
        store.writer("a") as writer,
        pytest.raises(StoreError, match="column 'image' of a prompt cannot be stored"),
    ):
        writer.add([picture])
    assert list(tmp_path.rglob("*.partial")) == []
    with pytest.raises(ValueError, match="1 texts for 2 members"):
        replace(stored, texts=("a",))
    for name in ("", "a/b", "a\n", "a" * 81):
        with pytest.raises(StoreError, match="cannot be called"):
            store.writer(name)
    with pytest.raises(StoreError, match="has 4 buckets and log-probs in half precision, not 2 buckets"):
        TrajectoryStore.create(tmp_path, buckets=2)
    with pytest.raises(StoreError, match=r"has 4 buckets and log-probs in half precision, not .* in single"):
        TrajectoryStore.create(tmp_path, is_half=False)
    with pytest.raises(StoreError, match="0 buckets is refused"):
        TrajectoryStore.create(tmp_path / "other", buckets=0)
    with pytest.raises(StoreError, match=r"is no store of trajectories: it has no store\.json"):
        TrajectoryStore.open(tmp_path / "other")
    (tmp_path / "store.json").write_text('{"format": 2, "buckets": 1, "logprobs": "half"}')
    with pytest.raises(StoreError, match="has format 2 of stores, and this version reads 1"):
        TrajectoryStore.open(tmp_path)


WRITE = """
import sys
sys.path.insert(0, "tests/support")
from stored_groups import filled, stored_group
from swift_rlx.store import TrajectoryStore
name = int(sys.argv[2])
for number in range(6):
    filled(TrajectoryStore.create(sys.argv[1]), [stored_group(100 * name + number)], f"writer {name}")
"""


@pytest.mark.slow
def test_writers_in_several_processes_lose_nothing(tmp_path):
    store = TrajectoryStore.create(tmp_path)
    command = [sys.executable, "-c", WRITE, str(tmp_path)]
    running = [subprocess.Popen([*command, str(name)], cwd=REPOSITORY) for name in range(3)]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    snapshot = store.snapshot()
    assert by_order(snapshot).keys() == {100 * name + number for name in range(3) for number in range(6)}
    assert snapshot.num_groups == 18
    assert snapshot.manifest.generation == 18


def test_a_store_that_another_process_makes_meanwhile_is_not_taken_for_other_files(tmp_path, monkeypatch):
    filled(TrajectoryStore.create(tmp_path), [stored_group(1)])
    read, looks = LocalPlace.read, iter([None])
    monkeypatch.setattr(LocalPlace, "read", lambda self, name: next(looks, read(self, name)))
    assert TrajectoryStore.create(tmp_path).snapshot().num_groups == 1
    monkeypatch.undo()
    (tmp_path / "store.json").unlink()
    with pytest.raises(StoreError, match=r"has no store\.json, but other files, such as 'manifest'"):
        TrajectoryStore.check_new(tmp_path)
