"""Stored batches while the trainer waits: the decision, and random runs that are watched from outside."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_runs import random_plan, run_and_check

from swift_rlx.errors import ConfigError
from swift_rlx.scheduler import WaitFiller


class HandClock:
    """Shows the time that it is told."""

    time = 0.0

    def now(self):
        return self.time


def filler(clock=None, **options):
    made = WaitFiller(clock or HandClock(), **options)
    made.has_stored = True
    return made


def test_a_wait_is_filled_as_long_as_there_is_something_stored():
    made = filler()
    made.asked()
    assert made.decide()
    made.has_stored = False
    made.asked()
    assert not made.decide()
    made.came()
    assert made.counts.waits_without_store == 1


def test_after_some_in_a_row_the_trainer_waits_for_a_fresh_batch():
    made = filler(max_in_a_row=2)
    for expected in (True, True, False):
        made.asked()
        assert made.decide() is expected
    assert made.has_filled
    made.came()
    assert made.counts.waits_at_the_limit == 1
    assert not made.has_filled
    made.asked()
    assert made.decide()


def test_what_was_filled_is_counted_apart_with_its_time():
    clock = HandClock()
    made = filler(clock)
    made.asked()
    assert made.decide()
    clock.time = 3.5
    made.asked()
    made.came()  # the fresh batch was there at once
    clock.time = 9.0
    made.asked()
    counts = made.counts
    assert (counts.batches, counts.seconds) == (1, 3.5)
    assert (counts.waits_without_store, counts.waits_at_the_limit) == (0, 0)


waits = st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30)


@settings(max_examples=50, deadline=None)
@given(waits, st.integers(1, 5))
def test_no_step_has_more_stored_batches_than_allowed_and_all_are_counted(waits, limit):
    """Of each wait how often the trainer would ask before the fresh batch is there, and whether there is a store."""
    made, given_out = filler(max_in_a_row=limit), 0
    for asks, has_stored in waits:
        made.has_stored = has_stored
        in_a_row = 0
        for _ in range(asks):
            made.asked()
            in_a_row += made.decide()
        assert in_a_row == (min(asks, limit) if has_stored else 0)
        made.asked()
        made.came()
        given_out += in_a_row
    assert made.counts.batches == given_out


def test_a_limit_of_none_at_all_is_refused():
    with pytest.raises(ConfigError, match="max_in_a_row 0 is refused: it must be at least 1"):
        WaitFiller(HandClock(), max_in_a_row=0)


@pytest.mark.parametrize("seed", range(60))
def test_random_runs_keep_every_law_while_waits_are_filled(seed):
    run_and_check(replace(random_plan(seed), fills=True))


def test_random_runs_do_fill():
    watches = [run_and_check(replace(random_plan(seed), fills=True)) for seed in range(25)]
    assert sum(watch.fills > 0 for watch in watches) >= 20
