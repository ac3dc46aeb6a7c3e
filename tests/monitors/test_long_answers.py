"""Whether long answers train as often as they are made."""

from __future__ import annotations

import random

import pytest

from swift_rlx.monitors.long_answers import LongAnswers


def _share(ended, trained):
    long = LongAnswers()
    for latency_s in ended:
        long.ended(latency_s)
    for one in trained:
        long.trained(*one)
    return long.values()


@pytest.mark.parametrize(
    "latencies", [list(range(1, 101)), [2.0] * 40, [1.0] * 50 + [9.0] * 50, [1.0] * 99 + [5.0], [3.0]]
)
def test_the_share_is_fair_where_everything_that_ended_trains(latencies):
    chance = random.Random(1)
    chance.shuffle(latencies)
    values = _share(latencies, [(one, 10, 10) for one in latencies])
    assert values == {
        "rollout/long_answers_share": pytest.approx(0.05),
        "rollout/long_answers_in_mask": pytest.approx(1.0),
    }


def test_long_answers_that_do_not_train_lower_the_share():
    ended = list(range(1, 101))
    assert _share(ended, [(one, 10, 10) for one in ended[:95]]) == {"rollout/long_answers_share": 0.0}
    half = _share(ended, [(one, 10, 10) for one in [*ended[:95], 99, 100]])
    assert half["rollout/long_answers_share"] == pytest.approx(2 / 97)


def test_tokens_of_long_answers_outside_the_mask_show():
    ended = list(range(1, 101))
    values = _share(ended, [(one, 10, 10 if one <= 95 else 4) for one in ended])
    assert values["rollout/long_answers_in_mask"] == pytest.approx(0.4)


def test_without_answers_there_is_nothing_to_say():
    assert _share([], [(1.0, 1, 1)]) == {}
    assert _share([1.0], []) == {}
