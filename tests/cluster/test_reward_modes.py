"""Rewards of all kinds in a process, a thread and the event loop (scenarios D 38, 39, 41, 42, 50, 51, 52)."""

import asyncio
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import odd_rewards
import pytest
import torch

from swift_rlx.algorithms import loo_advantages
from swift_rlx.cluster.reward_pool import ProcessExecution, RewardPool
from swift_rlx.errors import RewardError
from swift_rlx.rewards import AlarmWatch, OnError, checked_reward, describe_reward
from swift_rlx.rewards.execution import LoopExecution, NeedsMainThread, ThreadExecution
from swift_rlx.rewards.origin import origin_of_attribute
from swift_rlx.rewards.reward_loop import RewardLoop
from swift_rlx.rewards.runner import RewardRunner, RunnerSettings, Scored

MODES = ["process", "thread", "async"]
LONG_S = 120.0
LIMIT_S = 0.5


class Lab:
    """Runs rewards in every mode, with one pool of two processes for all tests."""

    def __init__(self) -> None:
        self.loop, self.pool, self.watch = RewardLoop(), RewardPool(2), AlarmWatch()

    def runner(self, mode: str, name: str, on_error: str = "raise", limit_s: float = LONG_S) -> RewardRunner:
        target = getattr(odd_rewards, name + ("_async" if mode == "async" else ""))
        policy, reward = OnError.parse(on_error), describe_reward("x", target, provider="pack 1.0")
        execution: Any
        if mode == "process":
            origin = origin_of_attribute(name, target)
            assert origin is not None
            execution = ProcessExecution(name, origin, self.pool, self.no_fall_back)
        else:
            kind = ThreadExecution if mode == "thread" else LoopExecution
            execution = kind(checked_reward(reward, policy), self.watch)
        return RewardRunner(reward, execution, RunnerSettings(limit_s, policy))

    def score(self, runner: RewardRunner, completions: list[str], **columns: Any) -> Scored:
        with self.watch.installed():
            return self.loop.submit(runner.score(completions, columns)).result(LONG_S)

    @staticmethod
    def no_fall_back() -> Any:
        raise AssertionError("it can run in a process")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    made.loop.clear(made.pool.close(), LONG_S)


def advantages(values: tuple[float | None, ...]) -> list[float]:
    rewards = torch.tensor([0.0 if value is None else value for value in values])
    valid = torch.tensor([value is not None for value in values])
    return loo_advantages(rewards, torch.zeros(len(values), dtype=torch.long), valid).tolist()


@pytest.mark.parametrize("form", ["each", "all_at_once"])
@pytest.mark.parametrize("mode", MODES)
def test_an_unscored_row_stays_out_of_its_siblings_baseline(mode: str, form: str, lab: Lab) -> None:
    scored = lab.score(lab.runner(mode, form), ["1", "?", "0", "1"])
    assert scored.values == (1.0, None, 0.0, 1.0)
    assert scored.counters.none == 1
    assert advantages(scored.values) == [0.5, 0.0, -1.0, 0.5]


@pytest.mark.parametrize("form", ["each", "all_at_once"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("odd", ["inf", "nan"])
def test_a_value_that_is_not_finite_ends_the_run_or_is_unscored(
    odd: str, mode: str, form: str, lab: Lab
) -> None:
    with pytest.raises(RewardError, match=rf"reward 'x' \(pack 1\.0\) returned {odd} on row 1"):
        lab.score(lab.runner(mode, form), ["1", odd])
    scored = lab.score(lab.runner(mode, form, "none"), ["1", odd])
    assert (scored.values, scored.counters.non_finite) == ((1.0, None), 1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("one_value", "returned 1 values for 8 completions"),
        ("too_few", "returned 7 values for 8 completions"),
        ("too_many", "returned 9 values for 8 completions"),
        ("scalar", "returned float 1.0: it must return 8 numbers"),
        ("text", "returned str '1': a reward is a number, .*, on row 0"),
        ("table", "returned dict .*: it must return 8 numbers"),
    ],
)
@pytest.mark.parametrize("policy", ["raise", "none"])
def test_a_wrong_shape_is_refused_whatever_the_policy(
    policy: str, name: str, sentence: str, mode: str, lab: Lab
) -> None:
    with pytest.raises(RewardError, match=rf"reward 'x' \(pack 1\.0\) {sentence}"):
        lab.score(lab.runner(mode, name, policy), ["1"] * 8)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name", ["generated", "array", pytest.param("tensor", marks=pytest.mark.slow)]
)  # a process imports torch
def test_generators_arrays_and_tensors_are_taken(name: str, mode: str, lab: Lab) -> None:
    assert lab.score(lab.runner(mode, name), ["a"] * 3).values == (0.0, 1.0, 2.0)


@pytest.mark.parametrize("form", ["each", "all_at_once"])
@pytest.mark.parametrize("mode", MODES)
def test_a_row_that_raises_is_named_or_costs_only_itself(mode: str, form: str, lab: Lab) -> None:
    rows = ["1"] * 5 + ["raise"] + ["1"] * 2
    with pytest.raises(
        RewardError,
        match=r"raised KeyError: 'no such answer' in .*odd_rewards\.py:\d+ on row 5 \(completion 'raise'",
    ):
        lab.score(lab.runner(mode, form), rows)
    for policy, given in (("none", None), ("value:-1", -1.0)):
        scored = lab.score(lab.runner(mode, form, policy), rows)
        assert scored.values == (*[1.0] * 5, given, 1.0, 1.0)
        assert scored.counters.failures == {"KeyError": 1}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["each", "all_at_once"])
@pytest.mark.parametrize("mode", MODES)
def test_a_row_that_hangs_costs_that_row_only(mode: str, form: str, lab: Lab) -> None:
    lab.score(lab.runner(mode, form), ["1", "2", "3"])  # the processes are there
    before = lab.pool.pids
    scored = lab.score(lab.runner(mode, form, limit_s=LIMIT_S), ["1", "hang", "0"])
    assert scored.values == (1.0, None, 0.0), "unscored, also under --reward_on_error raise"
    assert scored.counters.failures == {"TimeLimit": 1}
    assert scored.counters.over_limit == 1
    assert lab.score(lab.runner(mode, form, "value:-1", LIMIT_S), ["hang"]).values == (-1.0,)
    if mode == "process":
        assert len(lab.pool.pids) >= len(before), "as many processes as before"
        assert before - lab.pool.pids, "those that hung are gone"
    assert lab.score(lab.runner(mode, form), ["2"]).values == (2.0,)


@pytest.mark.parametrize("mode", MODES)
def test_a_right_answer_that_cannot_be_read_leaves_the_row_unscored(mode: str, lab: Lab) -> None:
    scored = lab.score(lab.runner(mode, "judged"), ["42", "42", "7"], solution=["42", "\\frac", "8"])
    assert scored.values == (1.0, None, 0.0)
    assert (scored.counters.none, scored.counters.failed) == (1, 0)


def test_a_verifier_with_an_alarm_works_in_a_process(lab: Lab) -> None:
    assert lab.score(lab.runner("process", "limits_itself"), ["a", "hang", "b"]).values == (1.0, -1.0, 1.0)


@pytest.mark.parametrize("mode", ["thread", "async"])
def test_a_verifier_with_an_alarm_is_told_apart_where_it_cannot_work(mode: str, lab: Lab) -> None:
    with pytest.raises(NeedsMainThread):
        lab.score(lab.runner(mode, "limits_itself"), ["a"])


# --- what only processes have ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("form", ["each", "all_at_once"])
def test_a_search_that_holds_the_interpreter_costs_that_row_only(form: str, lab: Lab) -> None:
    scored = lab.score(lab.runner("process", form, limit_s=LIMIT_S), ["1", "search", "0"])
    assert scored.values == (1.0, None, 0.0)
    assert scored.counters.over_limit == 1
    assert lab.score(lab.runner("process", form), ["2"]).values == (2.0,)


def test_a_process_that_dies_is_replaced_and_the_row_tried_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swift_rlx.rewards.runner.BACKOFF_S", 0.0)
    monkeypatch.setattr("swift_rlx.rewards.runner.MAX_RETRIES", 1)
    scored = lab.score(lab.runner("process", "each", "value:0"), ["1", "die", "1"])
    assert scored.values == (1.0, None, 1.0), "a fault of the infrastructure is never a reward"
    assert scored.counters.failures == {"ProcessEnded": 1}
    assert scored.counters.retries == 1
    with pytest.raises(RewardError, match=r"lost its process, which ended with status 3 on the row"):
        lab.score(lab.runner("process", "each"), ["die"])


def test_a_cancelled_call_ends_its_process(lab: Lab) -> None:
    lab.score(lab.runner("process", "each"), ["1"])
    before = lab.pool.pids
    hanging = lab.loop.submit(lab.runner("process", "each").score(["hang"], {}))
    busy = until(lambda: lab.pool._busy)
    hanging.cancel()
    [process] = busy
    until(lambda: process.pid not in lab.pool.pids and len(lab.pool.pids) >= len(before))


def test_scoring_is_in_another_process_with_the_plain_part_of_the_trainers_state(lab: Lab) -> None:
    from dataclasses import make_dataclass

    state = make_dataclass("State", ["global_step", "callbacks"])(7, [print])
    [value] = lab.score(lab.runner("process", "where"), ["a"], trainer_state=state).values
    assert value is not None
    assert int(value) in lab.pool.pids
    assert value % 1 == pytest.approx(0.7)


def test_a_class_gets_the_plain_arguments_of_the_training(lab: Lab) -> None:
    origin = origin_of_attribute("c", odd_rewards.Configured, {"scale": 2.0})
    reward = describe_reward("c", odd_rewards.Configured, args=SimpleNamespace(scale=2.0))
    runner = RewardRunner(reward, ProcessExecution("c", origin, lab.pool, lab.no_fall_back))
    assert lab.score(runner, ["a", "bcd"]).values == (2.0, 6.0)


@pytest.mark.parametrize(
    ("name", "columns"),
    [("each", {"image": [object()]}), ("Unbuildable", {})],
    ids=["no plain data", "no class"],
)
def test_what_no_process_can_run_goes_to_a_thread_with_one_warning(
    name: str, columns: dict[str, Any], lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    reward = describe_reward("x", odd_rewards.each)
    fallen: list[ThreadExecution] = []

    def in_thread() -> ThreadExecution:
        checked: Any = checked_reward(reward)
        fallen.append(ThreadExecution(checked, lab.watch))
        return fallen[-1]

    origin = origin_of_attribute(name, getattr(odd_rewards, name))
    runner = RewardRunner(reward, ProcessExecution(f"{name}!", origin, lab.pool, in_thread))
    for _ in range(2):
        assert lab.score(runner, ["3"], **columns).values == (3.0,)
    assert len(fallen) == 1
    assert ["in a thread of the trainer" in one.getMessage() for one in caplog.records].count(True) == 1


def test_more_calls_than_processes_wait_without_a_limit(lab: Lab) -> None:
    runner = lab.runner("process", "each", limit_s=30.0)

    async def many() -> list[Scored]:
        return await asyncio.gather(*(runner.score([str(at)], {}) for at in range(20)))

    assert [one.values for one in lab.loop.submit(many()).result(LONG_S)] == [
        (float(at),) for at in range(20)
    ]
    assert len(lab.pool.pids) <= 2


def until(condition: Callable[[], Any]) -> Any:
    """What it returns, once that is true."""
    deadline = time.monotonic() + LONG_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found
