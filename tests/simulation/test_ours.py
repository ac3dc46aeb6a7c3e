"""Simulated runs of the real scheduler: hand-computed rates, and the goals that it reaches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from swift_rlx.backends import WeightUpdate
from swift_rlx.errors import ConfigError
from swift_rlx.scheduler import TrainOrder
from swift_rlx.simulation import PEERS, Setting, simulate, simulate_peer
from swift_rlx.simulation.ours import simulate_with_statistics
from swift_rlx.simulation.tables import BASE, CASES, TOTALS, Row, missed, scheduling_cases
from swift_rlx.simulation.untrained_store import UntrainedStore
from swift_rlx.types import Fate

CONSTANT = Setting(train_s=1.0, generate_s=1.6, sigma=0.0, slots=96, steps=60)


def test_synchronous_training_takes_the_sum_of_the_stages():
    seen = simulate(replace(CONSTANT, max_staleness=0))
    assert seen.steps_per_h == pytest.approx(3600 / 2.6)
    assert seen.trainer_busy == pytest.approx(1 / 2.6)  # the trainer is busy for 38 % of the time
    assert (seen.mean_staleness, seen.in_mask) == (0, 1)


def test_generation_disappears_behind_training_where_it_is_fast_enough():
    seen = simulate(replace(CONSTANT, max_staleness=2))
    assert seen.trainer_busy >= 0.96
    assert seen.max_staleness <= 2


def test_with_too_few_slots_generation_is_the_limit():
    seen = simulate(replace(CONSTANT, slots=32))
    assert seen.steps_per_h == pytest.approx(3600 / 1.6, rel=0.02)


@pytest.mark.slow
def test_more_workers_give_more_slots():
    one, two = (simulate(replace(CONSTANT, slots=16 * count, workers=count)) for count in (1, 2))
    assert two.steps_per_h == pytest.approx(2 * one.steps_per_h, rel=0.05)


def test_publishing_time_costs_only_where_nothing_overlaps_it():
    strict = simulate(replace(CONSTANT, max_staleness=0, publish_s=0.5))
    assert strict.steps_per_h == pytest.approx(3600 / 3.1)
    overlapped = simulate(replace(CONSTANT, max_staleness=4, publish_s=0.5))
    assert overlapped.trainer_busy >= 0.96


def test_what_a_group_lost_that_is_being_made_again_at_the_end_is_counted():
    setting = replace(BASE, train_s=20.0, sigma=1.3, steps=10, weight_update=WeightUpdate.PIN)
    seen, stats = simulate_with_statistics(setting)
    assert stats.open + stats.carried > 0
    over_age, trained = stats.tokens[Fate.OVER_AGE], stats.tokens[Fate.TRAINED]
    assert seen.lost + seen.over_age == pytest.approx(over_age / (over_age + trained))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_is_strict_loses_nothing_and_is_as_fast_as_totals(case):
    train_s, sigma = case
    setting = replace(BASE, train_s=train_s, sigma=sigma, steps=100)
    seen, totals = simulate(setting), simulate_peer(PEERS[TOTALS], setting)
    assert seen.steps_per_h >= 0.95 * totals.steps_per_h
    assert seen.max_staleness <= 2
    assert (seen.lost, seen.trained_over_bound) == (0, 0)
    assert seen.in_mask + seen.over_age == pytest.approx(1.0)
    assert seen.tail_share >= 0.045


@pytest.mark.slow
def test_shaping_makes_tokens_younger_at_the_same_speed():
    setting = replace(BASE, train_s=60.0, sigma=0.7, steps=150)
    shaped, full = simulate(setting), simulate(replace(setting, shape_capacity=False))
    assert shaped.mean_staleness < full.mean_staleness - 0.3
    assert shaped.steps_per_h > 0.99 * full.steps_per_h
    assert shaped.in_mask >= full.in_mask - 0.005


@pytest.mark.slow
def test_more_pick_ups_a_step_let_more_tokens_train_at_the_same_speed():
    setting = replace(BASE, train_s=60.0, sigma=1.0, steps=60)
    whole, parts = simulate(setting), simulate(replace(setting, batches_per_step=8))
    assert parts.steps_per_h > 0.99 * whole.steps_per_h
    assert parts.in_mask > whole.in_mask + 0.03
    assert parts.mean_staleness < whole.mean_staleness - 0.3
    assert parts.max_staleness <= 2


def test_pinned_answers_over_age_are_made_again_and_counted_as_lost():
    setting = replace(BASE, train_s=20.0, sigma=1.0, steps=60, weight_update=WeightUpdate.PIN)
    seen, stats = simulate_with_statistics(setting)
    assert stats.regenerated > 10
    assert seen.lost > 0.05
    assert seen.max_staleness <= 2


def test_in_admission_order_nothing_is_over_age_and_the_trainer_waits():
    setting = replace(BASE, train_s=20.0, sigma=1.0, steps=60, train_order=TrainOrder.ADMISSION)
    seen = simulate(setting)
    assert seen.over_age == seen.lost == 0
    assert seen.trainer_busy < 0.6


SCARCE = replace(CONSTANT, slots=24, max_staleness=4, batches_per_step=4)
"""Too few slots to feed the trainer, so that it waits for a part of each step."""


@pytest.mark.slow
def test_waits_are_filled_with_stored_batches_and_counted_apart():
    plain, filled = simulate(SCARCE), simulate(replace(SCARCE, fill_the_wait=True))
    assert plain.stored_steps_per_h == 0
    assert filled.stored_steps_per_h > 100
    assert filled.trainer_busy > plain.trainer_busy + 0.05
    assert filled.max_staleness <= 4
    assert (filled.lost, filled.trained_over_bound) == (0, 0)
    both = filled.steps_per_h + filled.stored_steps_per_h
    assert both == pytest.approx(3600 * filled.trainer_busy, rel=1e-9)  # a step takes a second


@pytest.mark.slow
@pytest.mark.parametrize("picks", [1, 4])
def test_filling_makes_no_token_older_and_costs_little_of_the_rate(picks):
    setting = replace(BASE, train_s=20.0, sigma=1.0, steps=60, batches_per_step=picks)
    plain, filled = simulate(setting), simulate(replace(setting, fill_the_wait=True))
    assert filled.steps_per_h > 0.93 * plain.steps_per_h
    assert filled.over_age <= plain.over_age
    assert filled.max_staleness <= 2
    assert filled.stored == filled.over_age


def test_long_answers_train_whole_where_the_store_has_what_was_over_age():
    setting = replace(BASE, train_s=20.0, sigma=1.3, steps=60, fill_the_wait=True)
    seen = simulate(setting)
    assert seen.tail_in_mask < 0.2
    assert seen.tail_in_mask + seen.tail_from_store > 0.9


def test_what_was_over_age_trains_from_the_store_first():
    store = UntrainedStore(2)
    for index, untrained in ((0, 5), (1, 0), (2, 9)):
        store.add(index, untrained)
    assert store.take_batch() == [(2, 9), (0, 5)]
    seen = [store.take_batch() for _ in range(5)]
    assert {tokens for batch in seen for _, tokens in batch} == {0}
    assert not store.has_batch  # each of the three has trained four times


@pytest.mark.slow
def test_the_same_setting_gives_the_same_outcome():
    assert simulate(replace(CONSTANT, sigma=1.0)) == simulate(replace(CONSTANT, sigma=1.0))


@pytest.mark.slow
def test_the_table_has_every_rule_in_every_case_and_judges_it():
    cases = list(scheduling_cases(steps=12, seeds=1))
    assert [(case.train_s, case.sigma) for case in cases] == list(CASES)
    rows = {row.rule: row for row in cases[0].rows}
    assert rows["totals (AReaL, SkyRL)"].relative == 1.0
    assert rows["swift-rlx"].outcome.trained_over_bound == 0
    good = rows["swift-rlx"].outcome
    reached = replace(good, over_age=0.0, lost=0.0, tail_share=0.05, tail_in_mask=0.9)
    assert missed(Row("x", reached, 0.99)) == []
    assert missed(Row("x", reached, 0.9)) == ["steps/h"]
    assert missed(Row("x", replace(reached, lost=0.05), 1.0)) == ["untrained tokens"]
    assert missed(Row("x", replace(reached, trained_over_bound=0.01), 1.0)) == ["bound"]
    assert missed(Row("x", replace(reached, over_age=0.3), 1.0)) == ["untrained tokens"]
    assert missed(Row("x", replace(reached, over_age=0.3, stored=0.3), 1.0)) == []
    assert missed(Row("x", replace(reached, tail_in_mask=0.4, tail_from_store=0.1), 1.0)) == []
    assert missed(Row("x", replace(reached, tail_share=0.04, tail_in_mask=0.4), 1.0)) == [
        "tail prompts",
        "tail tokens",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_s": 0.0}, "train_s 0 is refused: it must be above 0"),
        ({"train_s": math.nan}, "train_s nan is refused: it must be above 0"),
        ({"generate_s": math.inf}, "generate_s inf is refused: .* at most 1e"),
        ({"publish_s": math.nan}, "publish_s nan is refused: it must be from 0 to"),
        ({"score_s": math.inf}, "score_s inf is refused: it must be from 0 to"),
        ({"sigma": -1.0}, "sigma -1 is refused: it must be from 0 to 4"),
        ({"sigma": 50.0}, "sigma 50 is refused: it must be from 0 to 4"),
        ({"workers": 4, "slots": 3}, "slots 3 on 4 workers is refused"),
        ({"batches_per_step": 5}, "batches_per_step 5 is refused: it has to divide the 32 groups"),
        ({"steps": 2}, "steps 2 is refused: it must exceed the 2 of the warm-up"),
        ({"batch_groups": 0}, "batch_groups 0 is refused"),
    ],
)
def test_settings_without_sense_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Setting(**changes)
