"""The schedule of fresh and stored batches, and how often a stored group may train."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swift_rlx.errors import CheckpointError, ConfigError, SchedulingError
from swift_rlx.scheduler import BatchSource, HybridSchedule, HybridState, ReuseLedger, offline_ratio

ratios = st.floats(0, 1)


def letters(schedule, count):
    kinds = (schedule.take(has_stored=True) for _ in range(count))
    return "".join("F" if kind is BatchSource.STORED else "N" for kind in kinds)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (0.0, "NNNNNNNNNNNN"),
        (0.3, "NNNFNNFNNFNN"),
        (0.5, "NFNFNFNFNFNF"),
        (2 / 3, "NFFNFFNFFNFF"),
        (1.0, "FFFFFFFFFFFF"),
    ],
)
def test_twelve_batches(ratio, expected):
    assert letters(HybridSchedule(ratio), 12) == expected


@settings(max_examples=50, deadline=None)
@given(ratios, st.integers(0, 2000))
def test_every_beginning_has_its_share(ratio, count):
    """As near as whole batches come: stored ones are the ratio of all, rounded down."""
    schedule = HybridSchedule(ratio)
    stored = letters(schedule, count).count("F")
    assert ratio * count - 1 < stored <= ratio * count + 1e-6


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 30))
def test_one_batch_in_n_is_fresh_and_it_is_the_first(every, rounds):
    schedule = HybridSchedule(offline_ratio(None, every))
    assert letters(schedule, every * rounds) == ("N" + "F" * (every - 1)) * rounds


@settings(max_examples=50, deadline=None)
@given(ratios, st.lists(st.booleans(), max_size=60), st.integers(0, 60))
def test_a_resumed_schedule_goes_on_as_if_nothing_had_happened(ratio, available, cut):
    ratio = min(ratio, 0.99)
    whole, first = HybridSchedule(ratio), HybridSchedule(ratio)
    expected = [whole.take(has_stored=one) for one in available]
    seen = [first.take(has_stored=one) for one in available[:cut]]
    saved = json.loads(json.dumps(first.state.as_dict()))
    second = HybridSchedule(ratio, HybridState.of(saved))
    seen += [second.take(has_stored=one) for one in available[cut:]]
    assert seen == expected
    assert second.state == whole.state


@settings(max_examples=50, deadline=None)
@given(ratios, st.lists(st.booleans(), max_size=60))
def test_what_the_store_lacks_is_fresh_and_is_not_made_up_for(ratio, available):
    ratio = min(ratio, 0.99)
    schedule = HybridSchedule(ratio)
    for number, has_stored in enumerate(available):
        is_due = schedule.due(number) is BatchSource.STORED
        expected = BatchSource.STORED if is_due and has_stored else BatchSource.FRESH
        assert schedule.take(has_stored=has_stored) is expected
    due = sum(schedule.due(number) is BatchSource.STORED for number in range(len(available)))
    assert schedule.state.lacking + schedule.state.stored == due
    assert schedule.num_batches == len(available)


def test_ranks_agree_whatever_they_asked_for_in_between():
    one, other = HybridSchedule(0.37), HybridSchedule(0.37)
    for number in range(200):
        other.due(number + 5)
        assert one.take(has_stored=True) is other.take(has_stored=True)


def test_an_offline_run_without_a_group_to_train_on_is_refused():
    with pytest.raises(ConfigError, match="--offline_ratio 1 is refused: the store has no batch"):
        HybridSchedule(1.0).take(has_stored=False)


@pytest.mark.parametrize(
    ("ratio", "every", "expected"),
    [
        (None, None, 0.0),
        (0.4, None, 0.4),
        (None, 1, 0.0),
        (None, 4, 0.75),
        (0.75, 4, 0.75),
        (2 / 3, 3, 2 / 3),
    ],
)
def test_the_ratio_comes_from_either_flag(ratio, every, expected):
    assert offline_ratio(ratio, every) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ratio", "every", "message"),
    [
        (1.5, None, r"--offline_ratio 1.5 is refused: it is a share of the batches, from 0 to 1"),
        (-0.1, None, r"--offline_ratio -0.1 is refused"),
        (None, 0, "--online_every 0 is refused: one batch in N is fresh, with N at least 1"),
        (0.3, 3, r"--offline_ratio 0.3 with --online_every 3 is refused: .* a ratio of 0.666667"),
    ],
)
def test_flags_that_mean_nothing_together_are_refused(ratio, every, message):
    with pytest.raises(ConfigError, match=message):
        offline_ratio(ratio, every)


def test_a_ratio_out_of_range_makes_no_schedule():
    with pytest.raises(ConfigError, match=r"an offline ratio of 1.2 is refused"):
        HybridSchedule(1.2)


@pytest.mark.parametrize("saved", [{"fresh": "x"}, {"steps": 3}, {"fresh": -1}, {"fresh": 0, "lacking": 1}])
def test_a_state_that_no_schedule_saved_is_refused(saved):
    with pytest.raises(CheckpointError, match="the state of the offline schedule cannot be read"):
        HybridState.of(saved)


# --- reuse -----------------------------------------------------------------------------------------------------------


def test_a_group_trains_from_the_store_as_often_as_it_may():
    ledger = ReuseLedger(2)
    ledger.use(["a", "b"])
    ledger.use(["a"])
    assert (ledger.allows("a"), ledger.allows("b"), ledger.allows("c")) == (False, True, True)
    assert (ledger.uses("a"), ledger.uses("c")) == (2, 0)


def test_a_batch_with_a_group_that_may_not_train_counts_nothing():
    ledger = ReuseLedger(2, {"a": 2})
    with pytest.raises(SchedulingError, match="stored group a would train 3 times of 2"):
        ledger.use(["b", "a"])
    assert ledger.state == {"a": 2}
    with pytest.raises(SchedulingError, match="stored group b would train 3 times of 2"):
        ledger.use(["b", "b", "b"])


def test_without_a_limit_everything_trains_again():
    ledger = ReuseLedger(None)
    ledger.use(["a"] * 100)
    assert ledger.allows("a")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=6), max_size=8), st.integers(0, 8))
def test_counts_survive_a_restart(batches, cut):
    whole, first = ReuseLedger(None), ReuseLedger(None)
    for batch in batches:
        whole.use(batch)
    for batch in batches[:cut]:
        first.use(batch)
    second = ReuseLedger(None, json.loads(json.dumps(first.state)))
    for batch in batches[cut:]:
        second.use(batch)
    assert second.state == whole.state


def test_what_has_left_the_store_is_forgotten():
    ledger = ReuseLedger(3, {"a": 1, "b": 2})
    ledger.forget(["a", "c"])
    assert ledger.state == {"b": 2}


def test_limits_and_counts_without_sense_are_refused():
    with pytest.raises(
        ConfigError, match="--max_reuse 0 is refused: a stored group has to train at least once"
    ):
        ReuseLedger(0)
    with pytest.raises(CheckpointError, match="the counts of reuse cannot be read"):
        ReuseLedger(4, {"a": -1})
