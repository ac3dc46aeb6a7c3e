"""The metrics of a window and the totals of a run, on hand-made events."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from swift_rlx.monitors import METRICS, Phase
from swift_rlx.monitors.meter import RolloutMeter
from swift_rlx.types import (
    Completion,
    DropReason,
    Fate,
    FinishReason,
    Prompt,
    Score,
    TrainBatch,
    TrainGroup,
    Trajectory,
    TrajectoryGroup,
)


def answer(submit_s, finish_s, steps=(0, 0), first_s=None):
    count = len(steps)
    return Completion(
        token_ids=np.zeros(count, np.int32),
        logprobs=np.zeros(count, np.float32),
        policy_steps=np.array(steps, np.int32),
        finish_reason=FinishReason.STOP,
        worker="worker-0",
        submit_s=submit_s,
        start_s=submit_s,
        first_token_s=submit_s + 0.1 if first_s is None else first_s,
        finish_s=finish_s,
    )


def batch(step, answers, masks, scored_s):
    prompt = Prompt(0, np.zeros(1, np.int32))
    members = tuple(Trajectory(prompt, at, one, Score(1.0), scored_s) for at, one in enumerate(answers))
    group = TrainGroup(TrajectoryGroup(prompt, 0, members), tuple(np.array(mask, bool) for mask in masks))
    return TrainBatch(step, (group,))


def counters(
    inflight=0,
    ready=0,
    retries=0,
    failovers=0,
    dropped=(),
    repeated_tokens=0,
    slots=(3, 4),
    **tokens,
):
    by_fate = {fate: tokens.get(fate.name.lower(), 0) for fate in Fate}
    return SimpleNamespace(
        inflight=inflight,
        ready=ready,
        retries=retries,
        repeated_tokens=repeated_tokens,
        failovers=failovers,
        dropped=dict(dropped),
        tokens=by_fate,
        max_inflight={f"worker-{at}": limit for at, limit in enumerate(slots)},
        away_s=0.0,
    )


def steps(meter, count, wait_s=1.0, train_s=3.0, start_s=0.0, first=1):
    """Steps of `wait_s` and `train_s`; returns when the last one ended."""
    for step in range(first, first + count):
        meter.phase(Phase.WAIT, start_s, start_s + wait_s, step)
        meter.phase(Phase.TRAIN, start_s + wait_s, start_s + wait_s + train_s, step)
        start_s += wait_s + train_s
    return start_s


def test_busy_is_training_over_wall_time_without_the_first_two_steps():
    meter = RolloutMeter(0.0)
    now = steps(meter, 2, wait_s=100.0)
    assert "rollout/trainer_busy" not in meter.values(now)
    now = steps(meter, 4, start_s=now, first=3)
    assert meter.values(now)["rollout/trainer_busy"] == pytest.approx(0.75)
    meter.begin_window(now)
    now = steps(meter, 2, wait_s=3.0, start_s=now, first=7)
    assert meter.values(now)["rollout/trainer_busy"] == pytest.approx(0.5)
    totals = meter.totals()
    assert (totals.steps, totals.wall_s) == (8, pytest.approx(4 * 4.0 + 2 * 6.0))
    assert totals.share(Phase.TRAIN) == pytest.approx(18 / 28)
    assert totals.share(Phase.WAIT) == pytest.approx(10 / 28)


def test_several_spans_of_one_step_are_one_step():
    meter = RolloutMeter(0.0)
    for step in (1, 2, 3):
        for part in (0, 1):
            begin = 4.0 * step + 2 * part
            meter.phase(Phase.TRAIN, begin, begin + 1, step)
    assert meter.totals().steps == 3
    assert meter.totals().wall_s == pytest.approx(15.0 - 11.0)
    assert meter.totals().share(Phase.TRAIN) == pytest.approx(0.5)


def test_what_follows_the_last_step_is_not_in_the_totals():
    meter = RolloutMeter(0.0)
    now = steps(meter, 4)
    meter.phase(Phase.EVALUATE, now, now + 1000, 4)
    assert meter.totals().share(Phase.EVALUATE) == 0.0
    steps(meter, 1, start_s=now + 1000, first=5)
    assert meter.totals().share(Phase.EVALUATE) == pytest.approx(1000 / 1012)


def test_waiting_and_publishing_are_per_batch_and_per_publish():
    meter = RolloutMeter(0.0)
    for at in (0, 10, 20, 30):
        meter.phase(Phase.WAIT, at, at + 2, 1)
        meter.phase(Phase.PUBLISH, at + 4, at + 4.5, 1)
        if at in (0, 20):
            meter.batch(batch(0, [answer(0, 1)], [[1, 1]], 1.0))
    meter.applied(1.0, 1.25)
    meter.applied(2.0, 2.75)
    values = meter.values(40.0)
    assert values["rollout/wait_s"] == pytest.approx(4.0)
    assert values["rollout/publish_s"] == pytest.approx(0.5)
    assert values["rollout/apply_s"] == pytest.approx(0.5)


def test_staleness_is_that_of_the_trained_tokens_alone():
    meter = RolloutMeter(0.0)
    old, young = answer(0, 1, (1, 4, 4)), answer(0, 1, (5, 5))
    meter.batch(batch(5, [old, young], [[0, 1, 1], [1, 0]], 3.5))
    values = meter.values(10.0)
    assert values["rollout/staleness_mean"] == pytest.approx((1 + 1 + 0) / 3)
    assert values["rollout/staleness_max"] == 1.0
    assert values["rollout/score_s"] == pytest.approx(2.5)


def test_tokens_and_latencies_are_of_the_answers_that_ended_here():
    meter = RolloutMeter(0.0)
    for at in range(1, 101):
        meter.completion(answer(10.0, 10.0 + at, (0,) * 5, first_s=10.0 + at / 10))
    values = meter.values(50.0)
    assert values["rollout/tokens_per_s"] == pytest.approx(500 / 50)
    assert values["rollout/latency_p50_s"] == pytest.approx(50.5)
    assert values["rollout/latency_p95_s"] == pytest.approx(95.05)
    assert values["rollout/first_token_p50_s"] == pytest.approx(5.05)
    assert values["rollout/first_token_p95_s"] == pytest.approx(9.505)
    meter.begin_window(50.0)
    assert meter.values(60.0) == {"rollout/tokens_per_s": 0.0}


def test_counters_are_differences_and_shares_are_of_the_run():
    meter = RolloutMeter(0.0)
    meter.count(counters(3, 1, 2, 1, repeated_tokens=7, trained=50, over_age=10, in_flight=40))
    meter.begin_window(1.0)
    meter.count(
        counters(4, 2, 5, 1, repeated_tokens=11, trained=150, over_age=20, failed=5, cut=5, in_flight=20)
    )
    values = meter.values(2.0)
    assert values["rollout/inflight"] == 4.0
    assert values["rollout/ready"] == 2.0
    assert values["rollout/retries"] == 3.0
    assert values["rollout/failovers"] == 0.0
    assert values["rollout/tokens_wasted"] == 20.0
    assert values["rollout/tokens_repeated"] == 4.0
    shares = {name: value for name, value in values.items() if name.startswith("tokens/")}
    assert shares["tokens/trained_share"] == pytest.approx(0.75)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert len(shares) == len(Fate)


def test_a_resumed_run_counts_from_what_earlier_starts_counted():
    meter = RolloutMeter(0.0)
    meter.go_on_from(counters(retries=7, over_age=100, dropped={DropReason.NO_SPREAD: 4}))
    meter.count(counters(retries=9, over_age=130, dropped={DropReason.NO_SPREAD: 9}))
    values = meter.values(1.0)
    assert (values["rollout/retries"], values["rollout/tokens_wasted"]) == (2.0, 30.0)
    assert values["groups/dropped_no_spread"] == 5.0
    assert meter.totals().slots == 7


def test_dropped_groups_of_all_reasons_are_counted_from_line_to_line():
    meter = RolloutMeter(0.0)
    assert "rollout/groups_dropped" not in meter.values(1.0)
    meter.go_on_from(counters(dropped={DropReason.NO_SPREAD: 3}))
    meter.count(counters(dropped={DropReason.NO_SPREAD: 5, DropReason.TOO_FEW_ANSWERS: 1}))
    assert meter.values(1.0)["rollout/groups_dropped"] == 3.0
    meter.begin_window(1.0)
    assert meter.values(2.0)["rollout/groups_dropped"] == 0.0


def test_groups_that_ended_without_training_are_counted_by_their_reason():
    meter = RolloutMeter(0.0)
    meter.count(counters(dropped={DropReason.TOO_FEW_ANSWERS: 2}, rejected=40))
    meter.begin_window(1.0)
    meter.count(counters(dropped={DropReason.TOO_FEW_ANSWERS: 3, DropReason.TOO_FEW_SCORED: 2}, rejected=70))
    values = meter.values(2.0)
    assert {name: value for name, value in values.items() if name.startswith("groups/")} == {
        "groups/dropped_too_few_answers": 1.0,
        "groups/dropped_too_few_scored": 2.0,
        "groups/dropped_no_spread": 0.0,
    }
    assert values["rollout/tokens_wasted"] == 0.0  # turned away by design


def test_slots_are_the_mean_of_an_adapted_limit_after_the_warm_up():
    meter = RolloutMeter(0.0)
    meter.count(counters(slots=(4, 4)))
    now = steps(meter, 3)
    for limit in (16, 20, 24):
        meter.count(counters(slots=(limit, limit)))
    steps(meter, 1, start_s=now, first=4)
    assert meter.totals().slots == 40


def test_tokens_of_the_environment_are_not_missing_from_the_mask_of_long_answers():
    meter = RolloutMeter(0.0)
    talk = replace(answer(0.0, 9.0, (2, -1, -1, 2)), sampled=np.array([True, False, False, True]))
    meter.completion(talk)
    meter.batch(batch(2, [talk], [[1, 0, 0, 1]], 9.0))
    assert meter.values(10.0)["rollout/long_answers_in_mask"] == 1.0


def test_a_run_without_a_line_of_the_log_needs_no_more_memory():
    def size(meter):
        window = meter._window
        held = [getattr(window, name) for name in window.__slots__]
        return sum(len(one) for one in held if isinstance(one, (list, dict)))

    meter = RolloutMeter(0.0)
    before = size(meter)
    for at in range(100):
        meter.applied(at, at + 0.5)
        meter.batch(batch(0, [answer(0, 1)], [[1, 1]], 1.5))
    assert size(meter) == before
    assert meter.values(100.0)["rollout/score_s"] == pytest.approx(0.5)


def test_answers_in_flight_are_averaged_from_the_end_of_the_warm_up():
    meter = RolloutMeter(0.0)
    meter.completion(answer(0.0, 5.0))
    now = steps(meter, 2)
    meter.completion(answer(4.0, 12.0))
    meter.completion(answer(8.0, 14.0))
    steps(meter, 2, start_s=now, first=3)
    assert meter.totals().mean_inflight == pytest.approx((4.0 + 6.0) / 8.0)


def test_every_metric_of_the_table_is_given_and_no_other():
    meter = RolloutMeter(0.0)
    now = steps(meter, 3)
    meter.phase(Phase.PUBLISH, now, now + 1, 3)
    meter.applied(0.0, 1.0)
    meter.completion(answer(0.0, 1.0))
    meter.batch(batch(0, [answer(0.0, 1.0)], [[1, 1]], 2.0))
    meter.count(counters(trained=2))
    assert set(meter.values(now)) == set(METRICS)
