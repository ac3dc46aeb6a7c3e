"""Replay: after a crash at any moment the run trains what the undisturbed one trains, and makes nothing twice."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from journaled_runs import JournaledLife
from resumed_runs import Life, plan_of

from swift_rlx.errors import CheckpointError
from swift_rlx.scheduler import generation, pickup, ready, replay, scheduler
from swift_rlx.scheduler.capacity import CapacityCounts
from swift_rlx.scheduler.journal_entries import Admitted, Dropped, PickedUp
from swift_rlx.scheduler.resume import RolloutState
from swift_rlx.types import DropReason, Fate, PolicyVersion

FAST_CRASHES, ALL_CRASHES = 70, 1000
MOST_CRASHES = 600
"""Until which a planted bug has to show."""


def plan_to_crash(seed):
    """A random run that is long enough to have checkpoints, and crashes long after them."""
    plan = plan_of(seed)
    batches = random.Random(f"length/{seed}").randint(10, 18)
    config = plan.config
    return replace(
        plan,
        batches=batches,
        config=replace(config, max_batches=None if config.max_batches is None else batches),
    )


def crashed(seed, fills=False):
    """A run that crashes a few times, the first time late, then often soon; and the undisturbed one."""
    plan, chance = replace(plan_to_crash(seed), fills=fills), random.Random(f"crashes/{seed}")
    undisturbed = Life(plan)
    undisturbed.live([])
    life = JournaledLife(plan, torn=0.3)
    later = [chance.uniform(0.0, 0.4) for _ in range(chance.randint(1, 4))]
    life.live([undisturbed.seconds * share for share in (chance.uniform(0.3, 1.0), *later)])
    return life, undisturbed


def check(life, undisturbed):
    trained = life.checkpoint.trained
    assert sorted(trained) == sorted(undisturbed.checkpoint.trained)
    assert len(set(trained)) == len(trained) == life.stats.trained
    assert not life.repeated, "the journal had it, and it was generated again"
    assert not life.last_watch.to_replay
    assert sum(life.stats.tokens.values()) == life.stats.generated_tokens
    assert not life.stats.tokens[Fate.IN_FLIGHT]
    assert life.stats.admitted == life.stats.trained + sum(life.stats.dropped.values())


def crash_until(count):
    """Lives with at least so many crashes in all."""
    lives, seed = [], 0
    while sum(life.starts - 1 for life in lives) < count:
        try:
            life, undisturbed = crashed(seed)
            check(life, undisturbed)
        except Exception as error:
            raise AssertionError(f"random plan {seed}: {error!r}") from error
        lives.append(life)
        seed += 1
    return lives


def test_a_crash_at_any_moment_loses_and_repeats_nothing_that_the_journal_kept():
    lives = crash_until(FAST_CRASHES)
    for name, least in (("replayed", 200), ("crashes_in_a_replay", 5), ("resumed_unfinished", 200)):
        assert sum(getattr(life, name) for life in lives) >= least, name


def test_stored_batches_that_filled_a_wait_are_trained_again_in_their_place():
    refilled = 0
    for seed in range(15):
        life, undisturbed = crashed(seed, fills=True)
        check(life, undisturbed)
        refilled += sum(watch.refilled for watch in life.watches)
    assert refilled >= 5


def test_a_run_that_filled_waits_does_not_resume_without_a_store():
    life, _ = crashed(0)
    state = replace(life.checkpoint.state, replay=(PickedUp(life.checkpoint.step, (), 0, True),))
    life = Life(plan_to_crash(0), checkpoint=replace(life.checkpoint, state=state), starts=9)
    with pytest.raises(
        CheckpointError, match=r"a stored batch was trained at optimizer step .* --fill_the_wait"
    ):
        life.live([])


@pytest.mark.parametrize(
    ("reason", "fate"), [(DropReason.NO_SPREAD, Fate.REJECTED), (DropReason.TOO_FEW_SCORED, Fate.FAILED)]
)
def test_tokens_of_dropped_groups_have_the_fate_that_they_had_before_the_crash(reason, fate):
    saved = RolloutState(PolicyVersion(), 2, CapacityCounts(), (), 0, {}, 0, {}, {}, 0, 0, {})
    after = replay.advance(saved, [Admitted(0, 0, 0), Dropped(0, reason, 31)])
    assert {one: count for one, count in after.tokens.items() if count} == {fate: 31}
    assert (after.dropped, after.capacity.dropped) == ({reason: 1}, 1)


@pytest.mark.slow
def test_a_thousand_crashes_lose_and_repeat_nothing_that_the_journal_kept():
    crash_until(ALL_CRASHES)


def _forget_what_was_picked_up(monkeypatch):
    _forget(monkeypatch, PickedUp)


def _forget_what_was_scored(monkeypatch):
    honest = replay._History._scored

    def every_other(self, group):
        if group.order % 2:
            honest(self, group)

    monkeypatch.setattr(replay._History, "_scored", every_other)


def _forget_what_was_dropped(monkeypatch):
    _forget(monkeypatch, Dropped)


def _forget(monkeypatch, kind):
    honest = replay._History.take

    def take(self, entry):
        if not isinstance(entry, kind):
            honest(self, entry)

    monkeypatch.setattr(replay._History, "take", take)


def _admit_again(monkeypatch):
    honest = replay._History.state

    def state(self):
        after = honest(self)
        return replace(after, capacity=replace(after.capacity, admitted=self.before.capacity.admitted))

    monkeypatch.setattr(replay._History, "state", state)


def _replay_in_another_order(monkeypatch):
    def backwards(self, orders):
        return [self._groups.pop(order) for order in reversed(list(orders))]

    monkeypatch.setattr(ready.ReadyBuffer, "take", backwards)


def _lose_a_snapshot_taken_in_a_replay(monkeypatch):
    honest = scheduler.capture
    monkeypatch.setattr(scheduler, "capture", lambda *args: replace(honest(*args), replay=()))


def _generate_at_once_what_will_be_over_age(monkeypatch):
    monkeypatch.setattr(generation.Generation, "admit_at", lambda self, group, step: self.admit(group))
    monkeypatch.setattr(pickup.PickUp, "_must_wait", lambda self, step, picks_left, awaited: False)


@pytest.mark.parametrize(
    "plant",
    [
        _forget_what_was_picked_up,
        _forget_what_was_scored,
        _forget_what_was_dropped,
        _admit_again,
        _replay_in_another_order,
        _lose_a_snapshot_taken_in_a_replay,
        _generate_at_once_what_will_be_over_age,
    ],
)
def test_a_planted_bug_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="random plan"):
        crash_until(MOST_CRASHES)
