"""Replay: after a crash at any moment the run trains what the undisturbed one trains, and makes nothing twice."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from journaled_runs import JournaledLife, MemoryLog
from resumed_runs import Life, plan_of
from scheduler_runs import prompts, score_one
from small_run import settings

from swift_rlx.backends.base import WeightUpdate
from swift_rlx.errors import BackendUnavailable, CheckpointError
from swift_rlx.scheduler import (
    IterableSource,
    RolloutScheduler,
    generation,
    pickup,
    ready,
    replay,
    scheduler,
)
from swift_rlx.scheduler.capacity import CapacityCounts
from swift_rlx.scheduler.journal_entries import Admitted, Dropped, PickedUp
from swift_rlx.scheduler.resume import RolloutState
from swift_rlx.testing.fake_backend import FakeBackend, FakeScript, Fault
from swift_rlx.testing.virtual_clock import run_virtual
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
    assert life.stats.generated_tokens <= life.made_tokens, "tokens are counted twice"


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


def _seconds(request):
    return 2.0 + request.prompt.index / 10 + request.member


def _dies_once(request):
    if request.attempt <= 2 and request.prompt.index == 3:  # weights may come before the first one fails
        return Fault(BackendUnavailable, after_s=1.5)
    return None


def run_and_crash(log, saved=None, seconds=9.0, count=6):
    """Let a small run go on for so long; its snapshots after a second and at the end, and what it made.

    The worker tells of its tokens two at a time, fails once at prompt 3 behind an odd one, and weights are published by
    `abort`, which throws away what was made.
    """

    async def main():
        version = PolicyVersion() if saved is None else saved.next_version
        script = FakeScript(_seconds, fault=_dies_once, tell_s=0.2)
        backend = FakeBackend(script=script, mode=WeightUpdate.ABORT, version=version)
        run = RolloutScheduler(
            settings(group_size=2, weight_update=WeightUpdate.ABORT),
            [backend],
            IterableSource(prompts(count)[0 if saved is None else saved.admitted :]),
            score_one,
            version=version,
            state=saved,
            prompt_of=lambda index, epoch: prompts(count)[index],
            journal=log,
        )
        async with run:
            await asyncio.sleep(1.05)
            snapshot = run.snapshot()
            if seconds > 2:
                run.publish(None)
            await asyncio.sleep(seconds - 1.05)
            return snapshot, run.snapshot(), backend.generated_tokens

    return run_virtual(main())


def test_answers_that_were_in_flight_at_the_snapshot_are_counted_once():
    log = MemoryLog()
    saved, crashed_at, made = run_and_crash(log)
    assert saved.tokens[Fate.CUT] == sum(one.held for one in saved.open) > 0
    assert all(one.ready is not None for one in crashed_at.open)
    after = log.resume(saved)
    assert after.tokens == crashed_at.tokens
    assert min(after.tokens[Fate.FAILED], after.tokens[Fate.CUT]) > 0, "nothing was lost on the way"
    assert sum(after.tokens.values()) == made


def test_what_a_crash_cut_stays_cut_when_the_answers_are_made_again_before_the_next_checkpoint():
    log = MemoryLog()
    saved, _, _ = run_and_crash(log, seconds=1.4)
    begun = log.resume(saved)
    assert not any(one.ready for one in begun.open)
    _, second, made = run_and_crash(log, begun)
    after = log.resume(saved)
    assert after.tokens == second.tokens
    assert sum(after.tokens.values()) == made + sum(saved.tokens.values())


@pytest.mark.slow
def test_a_thousand_crashes_lose_and_repeat_nothing_that_the_journal_kept():
    crash_until(ALL_CRASHES)


def _forget_what_was_picked_up(monkeypatch):
    _forget(monkeypatch, PickedUp)


def _forget_what_was_scored(monkeypatch):
    honest = replay._History._scored

    def every_other(self, entry):
        if entry.group.order % 2:
            honest(self, entry)

    monkeypatch.setattr(replay._History, "_scored", every_other)


def _count_what_was_in_flight_twice(monkeypatch):
    monkeypatch.setattr(replay._History, "_found", lambda self, one, lost: None)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        _forget_what_was_picked_up,
        _forget_what_was_scored,
        _forget_what_was_dropped,
        _count_what_was_in_flight_twice,
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
