"""The peers' rules do what they are said to do, and what the published comparison saw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swift_rlx.simulation import PEERS, Setting, simulate, simulate_peer
from swift_rlx.simulation.tables import BASE

LONG_TAILED = replace(BASE, train_s=20.0, sigma=1.0)


def outcome(name, setting=LONG_TAILED):
    return simulate_peer(next(rule for known, rule in PEERS.items() if known.startswith(name)), setting)


def test_synchronous_training_is_strict_and_slow():
    seen = outcome("sync")
    assert seen.max_staleness == 0
    assert seen.steps_per_h == pytest.approx(18, abs=2)
    assert (seen.lost, seen.in_mask) == (0, 1)


def test_totals_keep_everything_and_train_what_is_over_the_bound():
    seen = outcome("totals (AReaL")
    assert seen.steps_per_h == pytest.approx(166, abs=3)
    assert seen.trained_over_bound > 0.2
    assert seen.max_staleness > 20
    assert seen.lost == 0
    assert seen.tail_share == pytest.approx(0.049, abs=0.002)


@pytest.mark.parametrize(("name", "waste"), [("discard", 0.6), ("totals, discard", 0.4), ("cancel", 0.46)])
def test_throwing_away_is_strict_and_never_trains_the_slowest(name, waste):
    seen = outcome(name)
    assert seen.trained_over_bound == 0
    assert seen.max_staleness == 2
    assert seen.lost >= waste - 0.01
    assert seen.tail_share == 0


@pytest.mark.slow
def test_cancelling_wastes_what_was_seen_elsewhere():
    waste = {(20.0, 0.7): 0.33, (20.0, 1.0): 0.46, (20.0, 1.3): 0.55, (60.0, 0.7): 0.029, (60.0, 1.0): 0.176}
    for (train_s, sigma), expected in waste.items():
        assert outcome("cancel", replace(BASE, train_s=train_s, sigma=sigma)).lost == pytest.approx(
            expected, abs=0.02
        )


def test_waiting_is_strict_and_slow():
    seen = outcome("wait")
    assert (seen.trained_over_bound, seen.lost, seen.max_staleness) == (0, 0, 2)
    assert seen.steps_per_h == pytest.approx(43, abs=4)


def test_without_a_bound_the_trainer_never_waits_and_ages_grow():
    seen = outcome("no bound")
    assert seen.trainer_busy == pytest.approx(1.0)
    assert seen.max_staleness > 100


def test_our_scheduler_and_the_model_of_totals_admit_alike():
    """Both harnesses: same arrivals, same admission, so the same rate; they differ in what they train."""
    setting = Setting(train_s=20.0, generate_s=20.0, sigma=1.0, steps=100, shape_capacity=False)
    ours, theirs = simulate(setting), outcome("totals (AReaL", setting)
    assert ours.steps_per_h == pytest.approx(theirs.steps_per_h, rel=0.02)
    assert ours.tail_share == pytest.approx(theirs.tail_share, abs=0.003)
    assert ours.trained_over_bound == 0
