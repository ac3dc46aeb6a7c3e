"""Stored batches while the trainer waits: the rule itself, and random runs that are watched from outside."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_runs import random_plan, run_and_check

from swift_rlx.errors import ConfigError
from swift_rlx.scheduler import FillVerdict, RolloutConfig, WaitFiller
from swift_rlx.scheduler.wait_filler import Waiting

FILL, TOKENS, GROUPS = FillVerdict.FILL, FillVerdict.TOKENS_WOULD_AGE, FillVerdict.GROUPS_WOULD_AGE


class HandClock:
    """Shows the time that it is told."""

    time = 0.0

    def now(self):
        return self.time


def filler(clock=None, **changes):
    defaults = {"batch_groups": 2, "group_size": 1, "min_members": 1, "max_staleness": 2}
    made = WaitFiller(RolloutConfig(**{**defaults, **changes}), clock or HandClock())
    made.has_stored = True
    return made


@pytest.mark.parametrize(
    ("picks_left", "tokens", "expected"),
    [
        (1, [], FILL),
        (1, [6, 6, 7], FILL),
        (1, [5], TOKENS),  # a token at the bound, and the stored batch ends the step
        (2, [5, 5], FILL),  # another pick-up of this step can take both
        (2, [5, 5, 5], TOKENS),
    ],
)
def test_a_token_at_the_bound_needs_another_pick_up_of_this_step(picks_left, tokens, expected):
    made = filler(batches_per_step=2)
    assert made.verdict(Waiting(5, picks_left, tuple(tokens))) is expected


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([6, 6], FILL),
        ([6, 6, 6], GROUPS),  # one pick-up of two is left until then
        ([6, 6, 7, 7], FILL),
        ([6, 7, 7, 7, 7], GROUPS),
        ([5], GROUPS),
        ([4], GROUPS),  # past its deadline: it is about to be made again
    ],
)
def test_whole_groups_need_a_pick_up_before_their_last_token_goes_over_age(groups, expected):
    assert filler().verdict(Waiting(5, 1, (), tuple(groups))) is expected


def test_a_batch_of_several_steps_ages_everything_by_all_of_them():
    made = filler(steps_per_batch=3)
    assert made.verdict(Waiting(6, 1, (8,))) is TOKENS  # at 9 it is over age
    assert made.verdict(Waiting(6, 1, (9,))) is FILL


def test_without_a_stored_batch_there_is_nothing_to_decide():
    made = filler()
    made.has_stored = False
    assert made.verdict(Waiting(5, 1)) is FillVerdict.NOTHING_STORED


def by_trying(config, waiting):
    """Whether, after the stored batch, pick-ups of the earliest deadlines can take everything in time."""

    def fits(deadlines, last_step):
        slots, step, left = [], waiting.step, waiting.picks_left - 1
        while step <= last_step:
            slots += [step] * (left * config.batch_groups)
            step, left = step + config.steps_per_batch, config.batches_per_step
        return len(deadlines) <= len(slots) and all(
            slot <= deadline for slot, deadline in zip(slots, sorted(deadlines), strict=False)
        )

    next_step = waiting.step + config.steps_per_batch
    at_the_bound = [one for one in waiting.token_deadlines if one < next_step]
    return fits(at_the_bound, next_step - 1) and fits(waiting.group_deadlines, waiting.step + 60)


deadlines = st.lists(st.integers(0, 9), max_size=12)


@settings(max_examples=50, deadline=None)
@given(
    deadlines,
    deadlines,
    st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2), (1, 4)]),
    st.integers(1, 4),
    st.data(),
)
def test_it_is_allowed_exactly_where_everything_still_fits(tokens, groups, shape, batch_groups, data):
    steps_per_batch, batches_per_step = shape
    made = filler(
        batch_groups=batch_groups, steps_per_batch=steps_per_batch, batches_per_step=batches_per_step
    )
    picks_left = data.draw(st.integers(1, batches_per_step))
    waiting = Waiting(5, picks_left, tuple(5 + one for one in tokens), tuple(5 + one for one in groups))
    allowed = made.verdict(waiting) is FILL
    assert allowed == by_trying(made._config, waiting)


@settings(max_examples=50, deadline=None)
@given(deadlines, deadlines, st.integers(1, 3))
def test_fewer_groups_never_turn_a_yes_into_a_no(tokens, groups, picks_left):
    made = filler(batches_per_step=3)
    more = Waiting(0, picks_left, tuple(tokens), tuple(groups))
    fewer = Waiting(0, picks_left, tuple(tokens[1:]), tuple(groups[1:]))
    assert made.verdict(more) is not FILL or made.verdict(fewer) is FILL


def test_after_some_in_a_row_the_trainer_waits_for_a_fresh_batch():
    made = WaitFiller(RolloutConfig(batch_groups=2), HandClock(), max_in_a_row=2)
    made.has_stored = True
    for expected in (True, True, False):
        made.asked()
        assert made.decide(Waiting(5, 1)) is expected
    made.came()
    made.asked()
    assert made.decide(Waiting(5, 1))
    assert made.counts.refused == {FillVerdict.ENOUGH: 1}
    with pytest.raises(ConfigError, match="max_in_a_row 0 is refused"):
        WaitFiller(RolloutConfig(batch_groups=2), HandClock(), max_in_a_row=0)


def test_what_was_filled_is_counted_apart_with_its_time():
    clock = HandClock()
    made = filler(clock)
    made.asked()
    assert not made.decide(Waiting(5, 1, (5,)))
    made.came()
    clock.time = 10.0
    made.asked()
    assert made.decide(Waiting(5, 1))
    clock.time = 13.5
    made.asked()
    made.came()
    assert made.counts.batches == 1
    assert made.counts.seconds == 3.5
    assert made.counts.refused == {TOKENS: 1}  # the second fresh batch was there at once


@pytest.mark.parametrize("seed", range(60))
def test_random_runs_keep_every_law_while_waits_are_filled(seed):
    run_and_check(replace(random_plan(seed), fills=True))


def test_random_runs_do_fill():
    watches = [run_and_check(replace(random_plan(seed), fills=True)) for seed in range(25)]
    assert sum(watch.fills > 0 for watch in watches) >= 5
