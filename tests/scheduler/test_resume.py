"""Resume: killed at random moments, a run trains what the undisturbed one trains; and what it keeps on disk."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace

import numpy as np
import pytest
from resumed_runs import Life, plan_of
from scheduler_runs import prompts, score_one
from small_run import settings

from swift_rlx.errors import CheckpointError
from swift_rlx.scheduler import (
    GroupOutcome,
    IterableSource,
    RolloutScheduler,
    TrainOrder,
    load_state,
    save_state,
)
from swift_rlx.scheduler.journal_entries import PickedUp
from swift_rlx.scheduler.state_file import journal_of
from swift_rlx.testing.fake_backend import ConstantLatency, FakeBackend, FakeScript
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.types import Fate, PolicyVersion, RewardPart, Score

LIVES = 30


def disturbed(seed, plan, **options):
    chance = random.Random(f"kills/{seed}")
    life = Life(plan, **options)
    life.live([chance.uniform(0.0, 30.0) for _ in range(chance.randint(1, 4))])
    return life


def test_a_run_that_is_killed_at_random_moments_trains_what_the_undisturbed_one_trains():
    killed = ready = unfinished = 0
    for seed in range(LIVES):
        plan = plan_of(seed)
        undisturbed = Life(plan).live([])
        life = disturbed(seed, plan)
        trained = life.checkpoint.trained
        assert sorted(trained) == sorted(undisturbed), f"plan {seed}"
        assert len(set(trained)) == len(trained), f"plan {seed}"
        assert life.stats.trained == len(trained)
        assert sum(life.stats.tokens.values()) == life.stats.generated_tokens
        assert not life.stats.tokens[Fate.IN_FLIGHT]
        killed += life.starts - 1
        ready += life.resumed_ready
        unfinished += life.resumed_unfinished
    assert killed > LIVES / 2
    assert ready > LIVES / 4
    assert unfinished > LIVES


def test_in_admission_order_a_killed_run_trains_the_same_sequence():
    for seed in range(LIVES // 3):
        plan = plan_of(seed)
        plan = replace(plan, config=replace(plan.config, train_order=TrainOrder.ADMISSION))
        assert disturbed(seed, plan).checkpoint.trained == Life(plan).live([]), f"plan {seed}"


def test_a_run_resumes_from_disk(tmp_path):
    kept = []

    def keep(state):
        directory = tmp_path / str(len(kept))
        save_state(state, directory)
        kept.append(directory)
        return load_state(directory)

    for seed in range(LIVES // 6):
        plan = plan_of(seed)
        assert sorted(disturbed(seed, plan, keep=keep).checkpoint.trained) == sorted(Life(plan).live([]))
    assert len(kept) > LIVES / 6


def snapshot_of_a_small_run(**script):
    """Two batches were trained; some groups are ready, some still in the making."""

    async def score(prompt, completions):
        parts = (RewardPart("length", 0.1 + prompt.index, "2"),)
        return [Score(1 / 3, parts)] * len(completions)

    def latency(request):
        return 1.0 + request.prompt.index / 1000 if request.prompt.index < 6 else 50.0

    async def main():
        config = settings(group_size=2)
        backend = FakeBackend(script=FakeScript(latency, **script))
        async with RolloutScheduler(config, [backend], IterableSource(prompts(20)), score) as scheduler:
            for _ in range(2):
                await scheduler.next_batch()
                await scheduler.published(scheduler.publish(None))
                await asyncio.sleep(1.0)
            return scheduler.snapshot(), scheduler.statistics()

    return run_virtual(main())


def resumed(state, config=None, version=None, prompt_of=lambda index, epoch: prompts(20)[index]):
    """The scheduler's first batch after a resume, what ended, and its counters before that batch."""
    ends = []

    async def main():
        backend = FakeBackend(script=FakeScript(ConstantLatency(1.0)), version=version or state.next_version)
        scheduler = RolloutScheduler(
            config or settings(group_size=2),
            [backend],
            IterableSource(prompts(20)[state.admitted :]),
            score_one,
            version=version,
            on_end=ends.append,
            state=state,
            prompt_of=prompt_of,
        )
        async with scheduler:
            before = scheduler.statistics()
            batch = await scheduler.next_batch()
        return scheduler, batch, before

    scheduler, batch, before = run_virtual(main())
    return scheduler, batch, before, ends


def test_a_snapshot_keeps_what_is_ready_and_the_keys_of_what_is_not():
    state, stats = snapshot_of_a_small_run()
    assert [(one.index, one.order, one.ready is not None) for one in state.open] == [
        (4, 4, True),
        (5, 5, True),
        *((index, index, False) for index in range(6, 10)),
    ]
    assert (state.admitted, state.trained, state.version) == (10, 4, PolicyVersion(0, 2))
    assert state.tokens[Fate.IN_FLIGHT] == 40  # two groups of two answers of 10 tokens
    assert sum(state.tokens.values()) == stats.generated_tokens


def test_what_is_ready_is_not_generated_again_and_keeps_its_versions_and_rewards():
    state, _ = snapshot_of_a_small_run()
    scheduler, batch, before, ends = resumed(state)
    assert (before.admitted, before.trained, before.open, before.ready) == (10, 4, 6, 2)
    assert [one.group.prompt.index for one in batch.groups] == [4, 5]
    assert batch.step == 2
    completion = batch.groups[0].group.members[0].completion
    assert (completion.incarnation, set(completion.policy_steps.tolist())) == (0, {0})
    assert batch.groups[0].group.members[0].score.breakdown[0].value == 4.1
    assert scheduler.version == PolicyVersion(1, 2)
    assert scheduler.statistics().staleness[2] == 40
    assert [end.outcome for end in ends[:2]] == [GroupOutcome.TRAINED] * 2
    assert [end.group.prompt.index for end in ends[2:]] == list(range(6, 10))


def test_the_bound_holds_for_what_was_made_before_the_restart():
    state, _ = snapshot_of_a_small_run()
    # The ready groups are of step 0 and may be two steps old; the weights that are resumed are of step 3.
    scheduler, batch, _, _ = resumed(state, version=PolicyVersion(1, 3))
    assert {(one.group.prompt.index, one.group.rounds) for one in batch.groups} == {(4, 2), (5, 2)}
    assert set(batch.groups[0].group.members[0].completion.policy_steps.tolist()) == {3}
    assert scheduler.statistics().tokens[Fate.OVER_AGE] == 40
    assert scheduler.statistics().regenerated == 2


@pytest.mark.parametrize("environment", [False, True])
def test_a_state_comes_back_from_its_directory_as_it_was(tmp_path, environment):
    def sampled(request, count):
        return np.arange(count) % 4 != 3 if environment else None

    state, _ = snapshot_of_a_small_run(sampled=sampled, tell_s=0.5)
    # The fake tells nothing of an answer in which an environment has a part before its end.
    assert any(one.held for one in state.open) is not environment
    state = replace(state, open=(*state.open[:-1], replace(state.open[-1], lost={Fate.FAILED: 7})))
    save_state(state, tmp_path / "rollout")
    back = load_state(tmp_path / "rollout")
    for name in (
        "version",
        "group_size",
        "capacity",
        "trained",
        "dropped",
        "regenerated",
        "tokens",
        "staleness",
        "retries",
        "failovers",
        "failures",
    ):
        assert getattr(back, name) == getattr(state, name), name
    for one, other in zip(back.open, state.open, strict=True):
        assert (one.index, one.epoch, one.order, one.rounds) == (
            other.index,
            other.epoch,
            other.order,
            other.rounds,
        )
        assert (one.ready is None) is (other.ready is None)
        assert (one.held, one.lost) == (other.held, other.lost)
        if one.ready is None:
            continue
        for mine, original in zip(one.ready.members, other.ready.members, strict=True):
            assert (mine.member, mine.score, mine.attempts) == (
                original.member,
                original.score,
                original.attempts,
            )
            for name in ("token_ids", "logprobs", "policy_steps", "sampled"):
                np.testing.assert_array_equal(
                    getattr(mine.completion, name), getattr(original.completion, name)
                )
            assert (mine.completion.sampled is not None) is environment
            assert mine.completion.finish_s == original.completion.finish_s
    files = sorted(path.name for path in (tmp_path / "rollout").iterdir())
    assert files == ["state.json", "trajectories.arrow"]


def test_a_state_with_batches_to_replay_comes_back_too(tmp_path):
    state, _ = snapshot_of_a_small_run()
    state = replace(state, replay=(PickedUp(2, (5, 4), 3, True), PickedUp(3, (), 0, False)), journal="a name")
    save_state(state, tmp_path)
    back = load_state(tmp_path)
    assert (back.replay, back.journal) == (state.replay, "a name")
    assert journal_of(tmp_path) == "a name"
    assert journal_of(tmp_path / "nothing") is None


def _truncate(directory):
    path = directory / "trajectories.arrow"
    path.write_bytes(path.read_bytes()[:-12])


def _lose_the_json(directory):
    (directory / "state.json").unlink()


def _mix_two_snapshots(directory):
    other = directory / "other"
    save_state(snapshot_of_a_small_run()[0], other)
    (other / "trajectories.arrow").replace(directory / "trajectories.arrow")


def _lose_the_trajectories(directory):
    (directory / "trajectories.arrow").unlink()


def _spoil_the_json(directory):
    (directory / "state.json").write_text("{", encoding="utf-8")


def _empty(directory):
    (directory / "trajectories.arrow").write_bytes(b"")


@pytest.mark.parametrize(
    "spoil",
    [_truncate, _lose_the_json, _mix_two_snapshots, _lose_the_trajectories, _spoil_the_json, _empty],
)
def test_a_directory_that_is_not_whole_is_refused(tmp_path, spoil):
    save_state(snapshot_of_a_small_run()[0], tmp_path)
    spoil(tmp_path)
    with pytest.raises(CheckpointError, match="is not whole"):
        load_state(tmp_path)


def test_another_format_is_refused(tmp_path):
    save_state(snapshot_of_a_small_run()[0], tmp_path)
    plain = json.loads((tmp_path / "state.json").read_text(encoding="utf-8")) | {"format": 3}
    (tmp_path / "state.json").write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(CheckpointError, match="has format 3, and this version reads 2"):
        load_state(tmp_path)


def test_facts_that_json_cannot_hold_are_refused(tmp_path):
    state, _ = snapshot_of_a_small_run()
    first = state.open[0].ready.members[0]
    odd = replace(first, completion=replace(first.completion, info={"image": object()}))
    group = replace(state.open[0].ready, members=(odd,))
    state = replace(state, open=(replace(state.open[0], ready=group),))
    with pytest.raises(CheckpointError, match=r"cannot be saved: Completion\.info of member 0"):
        save_state(state, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": PolicyVersion(1, 1)}, r"of weights 0\.2 cannot be resumed at 1\.1"),
        ({"version": PolicyVersion(0, 2)}, r"of weights 0\.2 cannot be resumed at 0\.2"),
        ({"config": settings(group_size=3)}, "with 2 completions per prompt cannot be resumed with 3"),
        ({"prompt_of": None}, "6 prompts wait in the rollout state; give prompt_of"),
        ({"prompt_of": lambda index, epoch: prompts(1)[0]}, r"index 4\) was asked for .* \(0, 0\) was given"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(options, message):
    with pytest.raises(CheckpointError, match=message):
        resumed(snapshot_of_a_small_run()[0], **options)
