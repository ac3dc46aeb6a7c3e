"""The share of tokens that could train at most."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swift_rlx.simulation import Setting, simulate
from swift_rlx.simulation.limits import ceiling
from swift_rlx.simulation.tables import BASE


@pytest.mark.parametrize(
    ("bound", "picks", "expected"),
    [
        (1, 1, 10 / 30),  # of answers of 30 s the tokens of the last step of 10 s
        (2, 1, 20 / 30),
        (2, 2, (20 + 25) / 60),  # the second pick-up comes when half of the step is over
        (4, 1, 1.0),
    ],
)
def test_the_window_of_the_bound_is_what_can_train(bound, picks, expected):
    setting = Setting(
        generate_s=30.0, sigma=0.0, max_staleness=bound, batches_per_step=picks, batch_groups=4, steps=3
    )
    assert ceiling(setting, step_s=10.0) == pytest.approx((expected, expected))


@pytest.mark.parametrize("picks", [1, 8])
def test_the_scheduler_comes_near_the_ceiling_and_not_over_it(picks):
    setting = replace(BASE, train_s=60.0, sigma=1.0, steps=60, batches_per_step=picks)
    outcome = simulate(setting)
    best, best_of_tail = ceiling(setting, 3600 / outcome.steps_per_h)
    assert best - 0.06 < outcome.in_mask < best + 0.01
    assert outcome.tail_in_mask < best_of_tail + 0.03
