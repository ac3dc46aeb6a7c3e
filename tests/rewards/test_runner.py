"""What a runner adds to a reward: known scores, one version a scoring, sources; with a fake execution."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from swift_rlx.errors import RewardError
from swift_rlx.rewards import AlarmWatch, RewardRow, RewardSource, checked_reward, describe_reward
from swift_rlx.rewards.batch import Call
from swift_rlx.rewards.execution import LoopExecution
from swift_rlx.rewards.outcome import Failure, Outcome
from swift_rlx.rewards.runner import RewardRunner, RunnerSettings
from swift_rlx.rewards.scoring_plan import MAX_OVER_LIMIT_IN_A_ROW
from swift_rlx.rewards.source import is_source
from swift_rlx.rewards.spec import MARK, RewardMark
from swift_rlx.testing import run_virtual


class Service:
    """A source; `change_at`: the calls after which its version is another."""

    name = "judge"

    def __init__(self, change_at: Sequence[int] = ()) -> None:
        self.version = "v1"
        self.change_at = change_at
        self.rows: list[Sequence[RewardRow]] = []

    async def score(self, rows: Sequence[RewardRow]) -> list[float | None]:
        self.rows.append(rows)
        await asyncio.sleep(1)
        if len(self.rows) in self.change_at:
            self.version = f"v{len(self.rows) + 1}"
        return [float(row.completion) * int(self.version[1:]) for row in rows]


def runner_of(target: Any) -> RewardRunner:
    reward = describe_reward("judge", target)
    checked: Any = checked_reward(reward)
    return RewardRunner(reward, LoopExecution(checked, AlarmWatch()))


def test_a_source_gets_rows_with_their_columns_and_its_version_is_kept() -> None:
    service = Service()
    assert isinstance(service, RewardSource)
    scored = run_virtual(runner_of(service).score(["1", "2"], {"solution": ["a", "b"], "shared": 3}))
    assert (scored.values, scored.version) == ((1.0, 2.0), "v1")
    assert service.rows == [
        [RewardRow("1", {"solution": "a", "shared": 3}), RewardRow("2", {"solution": "b", "shared": 3})]
    ]


def test_a_version_that_changes_while_it_scores_scores_again() -> None:
    service = Service(change_at=[1])
    scored = run_virtual(runner_of(service).score(["1", "2"], {}))
    assert (scored.values, scored.version) == ((2.0, 4.0), "v2")
    assert len(service.rows) == 2


def test_a_version_that_does_not_stand_still_is_an_error() -> None:
    with pytest.raises(RewardError, match=r"changed its version during each of 5 scorings .* run one$"):
        run_virtual(runner_of(Service(change_at=range(99))).score(["1"], {}))


def test_classes_and_functions_are_no_sources() -> None:
    assert not is_source(Service)
    assert not is_source(lambda completion: 1.0)


class Counted:
    """An execution that notes its calls; `outcomes` in their place, where there are any."""

    def __init__(self, outcomes: Sequence[Outcome] = ()) -> None:
        self.calls: list[Call] = []
        self.outcomes = list(outcomes)

    async def run(self, call: Call, limit_s: float) -> Outcome:
        self.calls.append(call)
        if self.outcomes:
            return self.outcomes.pop(0)
        return Outcome(
            values=tuple(float(len(text)) for text in ([call.first] if call.is_single else call.first))
        )

    def close(self) -> None:
        """Nothing is open."""


def cached_runner(execution: Counted) -> RewardRunner:
    def lengths(completions: list[str], **_: Any) -> list[float]:
        return [float(len(text)) for text in completions]

    setattr(lengths, MARK, RewardMark(version="1", cache=True))
    return RewardRunner(describe_reward("lengths", lengths), execution)


def asked(prompt: str, completion: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]


def test_a_known_score_is_not_asked_for_again() -> None:
    execution = Counted()
    runner = cached_runner(execution)

    def score(prompts: list[str], completions: list[str], **columns: Any) -> Any:
        messages = [asked(*pair) for pair in zip(prompts, completions, strict=True)]
        return run_virtual(
            runner.score(completions, {"messages": messages, "request_id": prompts, **columns})
        )

    first = score(["p", "p"], ["a", "bb"])
    again = score(["p", "p", "q"], ["bb", "ccc", "a"])
    assert first.values == (1.0, 2.0)
    assert again.values == (2.0, 3.0, 1.0)
    assert (first.counters.cached, again.counters.cached) == (0, 1)
    assert [call.first for call in execution.calls] == [["a", "bb"], ["ccc", "a"]], (
        "another prompt is another row"
    )
    score(["p"], ["a"], solution=["42"])
    assert len(execution.calls) == 3, "so is another right answer"


def test_an_unscored_row_is_asked_for_again() -> None:
    execution = Counted([Outcome(values=(None,))])
    runner = cached_runner(execution)
    assert run_virtual(runner.score(["a"], {})).values == (None,)
    assert run_virtual(runner.score(["a"], {})).values == (1.0,)


def test_many_rows_over_the_limit_in_a_row_are_no_accident() -> None:
    def reward(completion: str) -> float:
        return 1.0

    late = Outcome(failure=Failure.over_limit(60.0))
    execution = Counted([late] * MAX_OVER_LIMIT_IN_A_ROW)
    runner = RewardRunner(describe_reward("slow", reward), execution)
    rows = ["a"] * (MAX_OVER_LIMIT_IN_A_ROW - 1)
    assert run_virtual(runner.score(rows, {})).values == (None,) * len(rows)
    with pytest.raises(RewardError, match=r"for 32 rows without a score .* raise --reward_timeout_s"):
        run_virtual(runner.score(["a"], {}))


def test_a_call_that_is_too_long_only_together_costs_no_row() -> None:
    def reward(completions: list[str]) -> list[float]:
        return [1.0] * len(completions)

    execution = Counted([Outcome(failure=Failure.over_limit(60.0))])
    runner = RewardRunner(describe_reward("slow", reward), execution, RunnerSettings())
    scored = run_virtual(runner.score(["a", "bb"], {}))
    assert (scored.values, scored.counters.failed) == ((1.0, 2.0), 0)
