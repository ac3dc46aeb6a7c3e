"""The laws of the scheduler in 1,000 random runs, and that the checker of these runs catches planted bugs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_runs import random_plan, run_and_check

from swift_rlx.scheduler import (
    capacity,
    drafts,
    generation,
    ledger,
    pickup,
    ready,
    recovery,
    requests,
    scoring,
)
from swift_rlx.scheduler.config import TrainOrder
from swift_rlx.testing.fake_backend import LogNormalLatency
from swift_rlx.types import DropReason, Fate

FAST_RUNS, ALL_RUNS = 100, 1000


def run_plans(seeds):
    watches = []
    for seed in seeds:
        try:
            watches.append(run_and_check(random_plan(seed)))
        except (TypeError, AttributeError, NameError):
            raise  # of the tests, and no law
        except Exception as error:
            raise AssertionError(f"random plan {seed}: {error}") from error
    return watches


def test_the_laws_hold_in_random_runs_that_meet_everything_that_can_happen():
    watches = run_plans(range(FAST_RUNS))
    assert sum(watch.untrained_ends for watch in watches) > 10
    assert sum(watch.continued for watch in watches) > 50
    assert sum(watch.deaths for watch in watches) > 50
    assert {age for watch in watches for age in watch.ages} == {0, 1, 2, 3, 4}
    assert {number for watch in watches for number in watch.rounds} == {1, 2}
    stats = [watch.stats for watch in watches]
    for name in ("regenerated", "retries", "failovers", "repeated_tokens"):
        assert sum(getattr(one, name) for one in stats) > 5, name
    seen = {fate for one in stats for fate, tokens in one.tokens.items() if tokens}
    assert seen == {Fate.TRAINED, Fate.OVER_AGE, Fate.CUT, Fate.FAILED, Fate.REJECTED}
    reasons = {reason for one in stats for reason in one.dropped}
    assert reasons == {DropReason.TOO_FEW_ANSWERS, DropReason.NO_SPREAD}
    plans = [watch.plan for watch in watches]
    for number in (
        sum(plan.config.max_inflight is None for plan in plans),
        sum(plan.stalls > 0 for plan in plans),
        sum(plan.failed_publishes > 0 for plan in plans),
        sum(plan.blackout is not None and one.failovers > 0 for plan, one in zip(plans, stats, strict=True)),
        sum(plan.lengths_known and plan.config.reserved_share > 0 for plan in plans),
    ):
        assert number > 5


@pytest.mark.slow
def test_the_laws_hold_in_a_thousand_random_runs():
    run_plans(range(FAST_RUNS, ALL_RUNS))


def _mask_one_step_too_old(monkeypatch):
    def too_generous(member, step, config):
        return member.completion.policy_steps >= step - config.max_staleness - 1

    monkeypatch.setattr(ready, "loss_mask", too_generous)


def _keep_groups_one_step_too_long(monkeypatch):
    def late(group, config):
        made = honest(group, config)
        return ready.ReadyGroup(made.group, made.deadline + config.steps_per_batch, made.tokens_by_step)

    honest = ready.make_ready
    monkeypatch.setattr("swift_rlx.scheduler.scoring.make_ready", late)


def _free_the_place_at_the_pick_up(monkeypatch):
    early = property(lambda self: self.admitted - self.dropped - self.picked)
    monkeypatch.setattr(capacity.Capacity, "charged", early)


def _retry_twice(monkeypatch):
    def twice(self, job):
        honest(self, job)
        honest(self, job)

    honest = generation.Generation._requeue
    monkeypatch.setattr(generation.Generation, "_requeue", twice)


def _forget_a_failed_member(monkeypatch):
    monkeypatch.setattr(generation.Generation, "_member_failed", lambda self, job, reason: None)


def _give_places_back_twice(monkeypatch):
    def twice(self, step):
        before = self._released
        honest(self, step)
        self._released += self._released - before

    honest = capacity.Capacity.live
    monkeypatch.setattr(capacity.Capacity, "live", twice)


def _lose_a_group(monkeypatch):
    async def lose(self, group):
        if group.order == 3:
            del self._running[group.order]
            self._watch()
            return
        await honest(self, group)

    honest = scoring.Scoring._run
    monkeypatch.setattr(scoring.Scoring, "_run", lose)


def _train_what_the_environment_said(monkeypatch):
    def everything(member, step, config):
        young = member.completion.policy_steps >= step - config.max_staleness
        return young if member.completion.sampled is None else young | ~member.completion.sampled

    monkeypatch.setattr(ready, "loss_mask", everything)


def _make_again_for_ever(monkeypatch):
    monkeypatch.setattr(pickup.PickUp, "_must_wait", lambda self, step, picks_left, awaited: False)


def _train_a_group_twice(monkeypatch):
    def peek(self, step, count, picks_left, awaited):
        return list(self.groups())[:count]

    monkeypatch.setattr(ready.ReadyBuffer, "pick", peek)


def _count_all_tokens_as_trained(monkeypatch):
    def all_trained(self, group, step):
        for member in group.group.members:
            self._state.ledger.settle(Fate.TRAINED, member.completion.num_tokens)

    monkeypatch.setattr(pickup.PickUp, "_settle", all_trained)


def _train_in_any_order(monkeypatch):
    def any_order(self, oldest_open):
        return len(self._groups)

    monkeypatch.setattr(ready.ReadyBuffer, "available", any_order)


def _drop_what_is_over_age(monkeypatch):
    def drop(self, group):
        self._state.book.restart(group)
        self._state.drop(group, group.record(), DropReason.TOO_FEW_ANSWERS)

    monkeypatch.setattr(generation.Generation, "regenerate", drop)


def _let_requests_hang(monkeypatch):
    monkeypatch.setattr(requests.TimeLimit, "start", lambda self, pulse: None)


def _leave_workers_out_for_ever(monkeypatch):
    async def never(self, worker, wait_s):
        return None

    monkeypatch.setattr(recovery.Recovery, "_bring_back", never)


def _forget_the_tokens_of_groups_that_were_turned_away(monkeypatch):
    def forgetful(self, fate, tokens):
        if fate is not Fate.REJECTED:
            honest(self, fate, tokens)

    honest = ledger.TokenLedger.settle
    monkeypatch.setattr(ledger.TokenLedger, "settle", forgetful)


def _go_on_behind_any_weights(monkeypatch):
    monkeypatch.setattr(drafts, "usable_tokens", lambda steps, worker, mode: len(steps))


def _forget_what_was_told(monkeypatch):
    monkeypatch.setattr(drafts.DraftBook, "settle", lambda self, job, fate: job.draft.cut(0))


def _book_what_was_told_twice(monkeypatch):
    def twice(self, job, chunk, submit_s):
        honest(self, job, chunk, submit_s)
        self._state.ledger.arrived(chunk.num_tokens)

    honest = drafts.DraftBook.told
    monkeypatch.setattr(drafts.DraftBook, "told", twice)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        _mask_one_step_too_old,
        _keep_groups_one_step_too_long,
        _free_the_place_at_the_pick_up,
        _retry_twice,
        _forget_a_failed_member,
        _train_a_group_twice,
        _count_all_tokens_as_trained,
        _give_places_back_twice,
        _lose_a_group,
        _train_what_the_environment_said,
        _make_again_for_ever,
        _train_in_any_order,
        _drop_what_is_over_age,
        _let_requests_hang,
        _leave_workers_out_for_ever,
        _forget_the_tokens_of_groups_that_were_turned_away,
        _go_on_behind_any_weights,
        _forget_what_was_told,
        _book_what_was_told_twice,
    ],
)
def test_a_planted_bug_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="random plan"):
        run_plans(range(FAST_RUNS))


@pytest.mark.parametrize("order", TrainOrder)
def test_only_in_admission_order_the_latencies_do_not_change_what_trains_when(order):
    sequences = []
    for latency_seed in (1, 2):
        plan = random_plan(1)
        config = replace(
            plan.config, train_order=order, max_staleness=3, steps_per_batch=1, batches_per_step=1
        )
        latency = LogNormalLatency(1.0, 1.5, latency_seed)
        plan = replace(plan, config=config, permanent=0.0, rejects=False, latency=latency)
        sequences.append(run_and_check(plan).trained)
    assert (sequences[0] == sequences[1]) is (order is TrainOrder.ADMISSION)
    assert sorted(sequences[0]) == sorted(sequences[1])
