"""The adapted number of requests in flight: on workers whose knee is known, and worked by hand."""

from __future__ import annotations

import asyncio
import random
import statistics

import pytest
from knee_backend import KneeBackend
from scheduler_runs import prompts, score_one

from swift_rlx.errors import ConfigError
from swift_rlx.scheduler import IterableSource, RolloutConfig, RolloutScheduler
from swift_rlx.scheduler.inflight import FEW, MAX_START, Climb, InflightLimit, Window, next_climb
from swift_rlx.testing.virtual_clock import run_virtual


def run(length, iteration_s, target_s=10.0, steps=24, **changes):
    """Limits after the steps of the second half, and the mean latency there; the workers always have enough to do."""
    limits = []

    async def main():
        config = RolloutConfig(
            **{
                "batch_groups": 16,
                "group_size": 4,
                "max_staleness": 8,
                "shape_capacity": False,
                "target_latency_s": target_s,
                **changes,
            }
        )
        backend = KneeBackend(length, iteration_s)
        async with RolloutScheduler(
            config, [backend], IterableSource(prompts(16 * steps)), score_one
        ) as scheduler:
            while await scheduler.next_batch() is not None:
                scheduler.publish(None)
                limits.append(scheduler.statistics().max_inflight["worker-0"])
        return backend.latencies

    latencies = run_virtual(main())
    return limits[len(limits) // 2 :], statistics.mean(latencies[len(latencies) // 2 :])


def flat_up_to(knee):
    return lambda rows: 0.01 * max(1.0, rows / knee)


def ever_slower(knee):
    return lambda rows: 0.01 * (1 + rows / knee)


def constant(request):
    return 20


def varied(request):
    return 1 + int(20 * random.Random(request.request_id).lognormvariate(0.0, 0.6))


@pytest.mark.parametrize("length", [constant, varied])
@pytest.mark.parametrize("knee", [12, 48])
def test_the_limit_stays_around_the_knee_of_a_worker_that_is_flat_up_to_it(length, knee):
    limits, latency_s = run(length, flat_up_to(knee))
    assert knee / 1.3 < statistics.median(limits) < 1.3 * knee
    assert latency_s < 0.01 * 1.4 * (20 if length is constant else 26)


def test_the_limit_finds_where_answers_take_twice_as_long_as_alone():
    limits, _ = run(constant, ever_slower(40))
    assert 28 < statistics.median(limits) < 56


def test_the_target_latency_goes_before_the_knee():
    limits, latency_s = run(constant, ever_slower(64), target_s=0.28)
    assert 18 < statistics.median(limits) < 28  # 0.2 s (1 + 26 / 64) is the target
    assert latency_s < 0.29


def test_a_target_that_the_lengths_do_not_allow_leaves_the_knee():
    limits, _ = run(constant, ever_slower(40), target_s=0.1)
    assert 28 < statistics.median(limits) < 56


def test_no_more_is_allowed_than_the_places_of_the_run():
    limits, _ = run(constant, flat_up_to(10_000), steps=20, max_staleness=1)
    assert limits[-1] == 2 * 16 * 4


def test_a_worker_that_is_not_full_keeps_its_limit():
    pace = InflightLimit(target_latency_s=2.0, most=100)
    for _ in range(100):
        pace.answered(pace.sent(inflight=FEW - 1), tokens=10, seconds=1.0)
    assert pace.limit == FEW
    for _ in range(8):
        pace.answered(pace.sent(inflight=FEW), tokens=10, seconds=1.0)
    assert pace.limit == 2 * FEW


def test_an_answer_that_was_sent_under_another_limit_counts_for_none():
    pace = InflightLimit(target_latency_s=2.0, most=100)
    old = pace.sent(inflight=FEW)
    for _ in range(8):
        pace.answered(pace.sent(inflight=FEW), tokens=10, seconds=1.0)
    for _ in range(100):
        pace.answered(old, tokens=10, seconds=1.0)
    assert pace.limit == 2 * FEW


@pytest.mark.parametrize(
    ("token_s", "expected"),
    [
        (0.010, 16),  # all of the added rows gained: doubled
        (0.012, 16),  # 74 % of them
        (0.016, 5),  # 32 %: below the middle of the two, by the small step from now on
    ],
)
def test_the_limit_climbs_while_half_of_the_added_rows_is_gained(token_s, expected):
    climb = Climb(limit=8, previous=Window(4, 1.0, 0.010))
    assert next_climb(climb, Window(8, 1.0, token_s), target_latency_s=9.0, most=99).limit == expected


@pytest.mark.parametrize(
    ("latency_s", "expected"),
    [
        (3.0, 10),  # 16 * 2 / 3
        (8.0, 8),  # at most halved
        (2.01, 15),  # at least one less
    ],
)
def test_a_window_over_the_target_lowers_the_limit_in_proportion(latency_s, expected):
    climb = Climb(limit=16, fastest_s=0.001)
    assert next_climb(climb, Window(16, latency_s, 0.01), target_latency_s=2.0, most=99).limit == expected


@pytest.mark.parametrize("knee", [1, 3, 9])
def test_a_small_knee_is_found_and_never_left_for_good(knee):
    limits, _ = run(constant, flat_up_to(knee), steps=20)
    assert set(limits) <= set(range(max(1, knee - 2), knee + 3))


def test_a_target_that_lengths_stop_allowing_gives_way_to_the_knee():
    longer = iter(range(10**6))

    def growing(request):
        return 20 if next(longer) < 700 else 100

    limits, _ = run(growing, ever_slower(40), target_s=0.28, steps=60)
    assert 28 < statistics.median(limits[-20:]) < 56


@pytest.mark.parametrize(("name", "value"), [("max_inflight", 0), ("target_latency_s", 0.0)])
def test_settings_that_allow_nothing_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} 0 is refused"):
        RolloutConfig(batch_groups=1, **{name: value})


def test_the_first_batch_goes_to_the_workers_at_once():
    assert InflightLimit(target_latency_s=2.0, most=100, first=32).limit == 32
    assert InflightLimit(target_latency_s=2.0, most=20, first=32).limit == 20
    assert InflightLimit(target_latency_s=2.0, most=1000, first=500).limit == MAX_START
    assert InflightLimit(target_latency_s=2.0, most=100, first=1).limit == FEW


@pytest.mark.parametrize(
    ("climb", "window", "expected"),
    [
        (Climb(32), Window(32, 1.0, 0.010), 16),  # nothing to compare with: look below
        (Climb(16, Window(32, 1.0, 0.010)), Window(16, 1.0, 0.006), 8),  # of twice the rows 26 % were gained
        (
            Climb(16, Window(32, 1.0, 0.010)),
            Window(16, 1.0, 0.010),
            26,
        ),  # all: turned, above the middle of the two
    ],
)
def test_a_first_limit_above_the_knee_is_halved_until_it_meets_it(climb, window, expected):
    assert next_climb(climb, window, target_latency_s=9.0, most=99).limit == expected


@pytest.mark.parametrize("knee", [4, 200])
def test_the_first_batch_takes_no_longer_than_its_longest_answers_allow(knee):
    begun = {}

    async def main():
        backend = KneeBackend(constant, flat_up_to(knee))
        config = RolloutConfig(batch_groups=16, group_size=4, max_staleness=0)
        async with RolloutScheduler(config, [backend], IterableSource(prompts(16)), score_one) as scheduler:
            assert await scheduler.next_batch() is not None
            begun["s"] = asyncio.get_running_loop().time()

    run_virtual(main())
    assert begun["s"] == pytest.approx(20 * 0.01 * max(1, 64 / knee), rel=0.05)
