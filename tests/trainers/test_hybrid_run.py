"""What rank 0 does with a store: the schedule on real groups, the same after a crash, and each fresh batch once."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swift_rlx.errors import CheckpointError, ConfigError, StoreError
from swift_rlx.scheduler.journal import Journal
from swift_rlx.scheduler.journal_entries import PickedUp
from swift_rlx.store import BatchRules, GroupFilter, StoredGroup, TrajectoryStore
from swift_rlx.trainers import stored_prompts as stored_prompts_of_run
from swift_rlx.trainers.hybrid_run import HybridPlan, HybridRun, Restart
from swift_rlx.trainers.rollout_rows import Origin
from swift_rlx.trainers.store_sealing import FreshBatch, RunFacts, ScoredMember, recipe_of
from swift_rlx.types import (
    Completion,
    FinishReason,
    Prompt,
    RewardPart,
    SamplingParams,
    Score,
    Trajectory,
    TrajectoryGroup,
)

GROUPS, SIZE = 2, 2
RECIPE = recipe_of(["length"], {"length": "1"}, [1.0], "")
FACTS = RunFacts(SamplingParams(), "fake", lambda group, place: f"{group.prompt.index}/{place}")


def plan(folder: Path, **changes: Any) -> HybridPlan:
    wanted = GroupFilter(max_age=changes.pop("max_age", None), min_spread=changes.pop("min_spread", 0.0))
    rules = BatchRules(GROUPS, changes.pop("max_reuse", 4), 3, wanted)
    shape = {"groups": GROUPS, "fill_groups": 1, "group_size": SIZE}
    return HybridPlan(str(folder), ratio=0.5, **shape, rules=rules, **changes)


def group(number: int, step: int = 0, logprob: float = -1.0) -> TrajectoryGroup:
    prompt = Prompt(number, np.array([number], np.int32), 0, {"messages": [{"role": "user", "content": "x"}]})
    tokens = np.array([5, 6], np.int32)
    facts = (np.full(2, logprob, np.float32), np.full(2, step, np.int32), FinishReason.STOP)
    members = tuple(Trajectory(prompt, one, Completion(tokens, *facts), Score(0.0)) for one in range(SIZE))
    return TrajectoryGroup(prompt, number, members)


def fresh(number: int, step: int = 0, recipe: str = RECIPE) -> FreshBatch:
    """Fresh batch `number`: its groups have the prompts 2 number and 2 number + 1, and rewards 0 and 1."""
    groups = tuple(group(GROUPS * number + at, step) for at in range(GROUPS))
    scored = tuple(ScoredMember(at, float(at), (RewardPart("length", float(at), "1"),)) for at in range(SIZE))
    return FreshBatch(groups, (scored,) * GROUPS, recipe)


class Driver:
    """A trainer that does nothing but ask."""

    def __init__(self, run: HybridRun) -> None:
        self.run = run
        self.allowed = 0
        run.begin_sealing(FACTS)

    def allow(self) -> None:
        self.allowed += 1

    def step(self, step: int) -> tuple[Origin, tuple[int, ...]]:
        """Train a generation batch; the prompts of a stored one."""
        origin = self.run.decide(step, self.allow)
        assert self.run.decide(step, self.allow) is origin, "asked again while it waits"
        if origin is Origin.STORED:
            return origin, prompts(self.run.take(step, origin))
        self.run.came()
        self.run.seal(fresh(self.run.num_fresh - 1, step))
        return origin, ()


def prompts(batch: Any) -> tuple[int, ...]:
    return tuple(row.index for row in batch.rows[::SIZE])


def stored_prompts(folder: Path) -> Counter[int]:
    snapshot = TrajectoryStore.open(folder).snapshot()
    return Counter(one.group.prompt.index for one in snapshot.groups(range(snapshot.num_groups)))


def undisturbed(folder: Path, steps: int, **changes: Any) -> list[tuple[Origin, tuple[int, ...]]]:
    driver = Driver(HybridRun(plan(folder, **changes), RECIPE))
    trained = [driver.step(step) for step in range(steps)]
    driver.run.close()
    return trained


def test_fresh_and_stored_batches_alternate_and_what_trained_least_comes_first(tmp_path: Path) -> None:
    trained = undisturbed(tmp_path, 8)
    assert [origin for origin, _ in trained] == [Origin.FRESH, Origin.STORED] * 4
    assert stored_prompts(tmp_path) == dict.fromkeys(range(8), 1)
    assert Counter(one for _, found in trained for one in found) == dict.fromkeys(range(8), 1)
    snapshot = TrajectoryStore.open(tmp_path).snapshot()
    [one] = list(snapshot.groups([0]))
    assert (one.engine, one.recipe, one.texts) == ("fake", RECIPE, ("0/0", "0/1"))
    assert [member.score.reward for member in one.group.members] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("prefix", "max_age", "warns"), [([], None, False), ([9], None, True), ([9], 5, False)]
)
def test_answers_behind_other_tokens_than_a_run_makes_of_their_prompts_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, prefix: list[int], max_age: int | None, warns: bool
) -> None:
    undisturbed(tmp_path, 1)

    def encode(prompt: Prompt) -> Any:
        assert prompt.columns["messages"]
        return np.array([*prefix, prompt.index], np.int32)

    stored_prompts_of_run.logger.addHandler(caplog.handler)
    try:
        HybridRun(plan(tmp_path, max_age=max_age, encode=encode), RECIPE).close()
    finally:
        stored_prompts_of_run.logger.removeHandler(caplog.handler)
    [writer] = TrajectoryStore.open(tmp_path).sealed()
    told = [one.getMessage() for one in caplog.records if "made behind other tokens" in one.getMessage()]
    assert [f"of {writer}, " in text for text in told] == [True] * warns


@pytest.mark.parametrize("killed_at", [3, 4, 5])
def test_a_resumed_run_takes_the_same_groups_and_stores_nothing_twice(tmp_path: Path, killed_at: int) -> None:
    def same_order(trained: list[tuple[Origin, tuple[int, ...]]]) -> list[Any]:
        return [(origin, len(found)) for origin, found in trained]

    first = Driver(HybridRun(plan(tmp_path / "store"), RECIPE))
    trained = [first.step(step) for step in range(3)]
    first.run.save(tmp_path / "saved")
    lost = [first.step(step) for step in range(3, killed_at)]
    first.run.close()  # what is sealed stays; all else is gone with the process

    replayed = sum(origin is Origin.FRESH for origin, _ in lost)
    second = Driver(HybridRun(plan(tmp_path / "store"), "unknown", Restart(tmp_path / "saved", replayed, 1)))
    assert second.run.recipe == RECIPE
    again = [second.step(step) for step in range(3, 8)]
    second.run.close()
    assert again[: len(lost)] == lost
    assert same_order(trained + again) == same_order(undisturbed(tmp_path / "other", 8))
    assert stored_prompts(tmp_path / "store") == dict.fromkeys(range(8), 1)
    assert list(TrajectoryStore.open(tmp_path / "store").sealed().values()) == [3]
    assert Counter(one for _, found in trained + again for one in found) == dict.fromkeys(range(8), 1)


def test_without_the_journal_batches_behind_the_checkpoint_count_no_more(tmp_path: Path) -> None:
    first = Driver(HybridRun(plan(tmp_path / "store"), RECIPE))
    for step in range(3):
        first.step(step)
    first.run.save(tmp_path / "saved")
    for step in range(3, 7):
        first.step(step)  # fresh ones at 4 and 6
    first.run.close()

    second = Driver(HybridRun(plan(tmp_path / "store"), RECIPE, Restart(tmp_path / "saved", 0, 1)))
    assert second.run.num_ready(3) == 4, "the groups of two batches"
    trained = [second.step(step) for step in range(3, 8)]
    second.run.save(tmp_path / "saved again")
    second.run.close()
    names = TrajectoryStore.open(tmp_path / "store").sealed()
    [old, new] = sorted(names, key=len)
    assert new == f"{old}.1"
    assert (names[old], names[new]) == (3, 1)
    assert max(one for _, found in trained for one in found) < 8
    third = HybridRun(plan(tmp_path / "store"), RECIPE, Restart(tmp_path / "saved again", 0, 2))
    assert third.num_ready(8) == 8
    assert third.lineage.writers == {old, new}


def test_a_checkpoint_of_another_store_is_refused(tmp_path: Path) -> None:
    first = Driver(HybridRun(plan(tmp_path / "store"), RECIPE))
    first.step(0)
    first.run.save(tmp_path / "saved")
    first.run.close()
    with pytest.raises(CheckpointError, match=r"has 0 rounds of 'run-.*' and the checkpoint needs 1"):
        HybridRun(plan(tmp_path / "another"), RECIPE, Restart(tmp_path / "saved", 0, 1))
    (tmp_path / "saved" / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"state.json' cannot be read"):
        HybridRun(plan(tmp_path / "store"), RECIPE, Restart(tmp_path / "saved", 0, 1))


def test_a_batch_that_the_store_lacks_is_a_fresh_one_and_the_pipeline_is_told(tmp_path: Path) -> None:
    driver = Driver(HybridRun(plan(tmp_path, min_spread=2.0), RECIPE))
    assert [driver.step(step)[0] for step in range(4)] == [Origin.FRESH] * 4
    driver.run.close()
    assert driver.allowed == 2
    assert "2 that were due from the store were fresh" in driver.run.summary()


def test_groups_train_no_more_than_they_may(tmp_path: Path) -> None:
    run = Driver(HybridRun(replace(plan(tmp_path, max_reuse=1), ratio=0.75), RECIPE))
    assert [run.step(step)[0] for step in range(4)] == [
        Origin.FRESH,
        Origin.STORED,
        Origin.FRESH,
        Origin.STORED,
    ]
    run.run.close()


def test_of_other_runs_train_groups_of_the_same_reward_without_an_age(tmp_path: Path) -> None:
    undisturbed(tmp_path, 3)
    run = HybridRun(plan(tmp_path), RECIPE)
    assert run.num_ready(0) == 4
    assert np.frombuffer(run.take(0, Origin.FILL).rows[0].staleness, "<i4").min() > 1000
    assert run.fills == 1
    with pytest.raises(StoreError, match="and the model has 6 tokens: another tokenizer filled it"):
        HybridRun(plan(tmp_path, vocabulary=6), RECIPE)
    assert HybridRun(plan(tmp_path, max_age=9), RECIPE).num_ready(0) == 0
    assert HybridRun(plan(tmp_path), "weighted: 1*length@2").num_ready(0) == 0


def test_own_groups_grow_over_age(tmp_path: Path) -> None:
    driver = Driver(HybridRun(plan(tmp_path, max_age=2), RECIPE))
    driver.step(0)
    driver.step(1)
    assert [driver.run.num_ready(step) for step in (1, 2, 3)] == [2, 2, 0]
    driver.run.close()


def test_fills_are_counted_and_asked_for_only_with_the_flag(tmp_path: Path) -> None:
    undisturbed(tmp_path, 1)
    assert HybridRun(plan(tmp_path), RECIPE).ask(0) is None
    run = HybridRun(replace(plan(tmp_path), fills=True, ratio=0.0), RECIPE)
    filler = run.ask(0)
    assert filler is not None
    assert filler.has_stored
    assert len(run.take(0, Origin.FILL).rows) == SIZE


def test_groups_without_logprobs_are_refused(tmp_path: Path) -> None:
    store = TrajectoryStore.create(tmp_path)
    with store.writer("import") as writer:
        writer.add([StoredGroup(group(0, logprob=float("nan")))])
        writer.seal()
    with pytest.raises(ConfigError, match=r"2 of 2 answers in the store .* have no log-probs"):
        HybridRun(plan(tmp_path), RECIPE)
    HybridRun(replace(plan(tmp_path), ratio=0.0), RECIPE)  # only writes


def test_what_cannot_be_written_ends_the_run_at_its_next_batch(tmp_path: Path) -> None:
    driver = Driver(HybridRun(plan(tmp_path), RECIPE))
    driver.run.decide(0, driver.allow)
    driver.run.came()
    batch = fresh(0)
    batch.groups[0].prompt.columns["picture"] = object()  # type: ignore[index]
    driver.run.seal(batch)
    with pytest.raises(StoreError, match="cannot write to its store any more: the column 'picture'"):
        driver.run.decide(1, driver.allow)
    driver.run.close()


def test_the_last_batch_is_stored_where_the_journal_was_closed_before(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.cut()
    journal.add(PickedUp(0, (0, 1), 0, False))
    journal.close()
    run = HybridRun(plan(tmp_path / "store"), RECIPE)
    run.begin_sealing(replace(FACTS, flush_journal=lambda: journal.flush(0.05)))
    assert run.sealer is not None
    run.sealer.add(0, fresh(0))
    assert run.sealer.wait(1, limit_s=20)
    run.close()
    assert not run.sealer._thread.is_alive()
    assert stored_prompts(tmp_path / "store") == dict.fromkeys(range(2), 1)


def test_two_rewards_that_differ_in_anything_have_two_recipes() -> None:
    names, versions = ["a", "b"], {"a": "1"}
    made = {
        recipe_of(names, versions, [1.0, 0.5], ""),
        recipe_of(names, versions, [1.0, 1.0], ""),
        recipe_of(names, {"a": "2"}, [1.0, 0.5], ""),
        recipe_of(names, versions, [1.0, 0.5], "zscore of the run"),
    }
    assert len(made) == 4
    assert "weighted: 1*a@1 + 0.5*b@" in made
