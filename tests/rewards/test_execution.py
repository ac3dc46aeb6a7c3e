"""Calls of sync rewards in threads: one at a time, in daemon threads, and never waited for once they are given up."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from swift_rlx.rewards import AlarmWatch, CheckedReward, checked_reward, describe_reward
from swift_rlx.rewards.batch import Call
from swift_rlx.rewards.execution import ThreadExecution
from swift_rlx.rewards.outcome import Fault, Outcome

LONG_S = 30.0


class Gate:
    """A reward that hangs on the answer "hang" until `go`, and notes its calls."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.calls: list[tuple[str, threading.Thread]] = []
        self.inside = self.most_inside = 0

    def __call__(self, completion: str) -> float:
        self.calls.append((completion, threading.current_thread()))
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        if completion == "hang":
            self.begun.set()
            assert self.go.wait(LONG_S)
        self.inside -= 1
        return 1.0

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@pytest.fixture
def gate() -> Gate:
    return Gate()


def reward_of(target: Callable[..., Any]) -> CheckedReward:
    reward = checked_reward(describe_reward("gate", target))
    assert isinstance(reward, CheckedReward)
    return reward


async def run(execution: ThreadExecution, name: str, limit_s: float = LONG_S) -> Outcome:
    return await asyncio.wait_for(execution.run(Call(name, {}, 1, is_single=True), limit_s), LONG_S)


async def begun(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.begun.wait, LONG_S)


def test_calls_come_one_by_one_in_a_daemon_thread(gate: Gate) -> None:
    execution = ThreadExecution(reward_of(gate), AlarmWatch())

    async def main() -> list[Outcome]:
        return await asyncio.gather(*(run(execution, str(number)) for number in range(5)))

    assert [one.values for one in asyncio.run(main())] == [(1.0,)] * 5
    assert gate.names() == list("01234")
    assert len({thread for _, thread in gate.calls}) == 1
    thread = gate.calls[0][1]
    assert thread.daemon, "the interpreter must not wait for a reward that hangs"
    execution.close()
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_a_thread_safe_reward_has_several_calls_at_a_time() -> None:
    both = threading.Barrier(2)

    def reward(completion: str) -> float:
        both.wait(LONG_S)
        return 1.0

    execution = ThreadExecution(reward_of(reward), AlarmWatch(), lanes=2)

    async def main() -> list[Outcome]:
        return await asyncio.gather(run(execution, "a"), run(execution, "b"))

    assert [one.values for one in asyncio.run(main())] == [(1.0,)] * 2
    execution.close()


def test_a_call_that_is_cancelled_is_given_up_at_once_and_the_others_go_on(gate: Gate) -> None:
    execution = ThreadExecution(reward_of(gate), AlarmWatch())

    async def main() -> None:
        hanging = asyncio.ensure_future(run(execution, "hang"))
        await begun(gate)
        behind = [asyncio.ensure_future(run(execution, name)) for name in ("cancelled", "behind")]
        await asyncio.sleep(0)
        behind[0].cancel()
        hanging.cancel()
        assert (await behind[1]).values == (1.0,)
        assert (await run(execution, "later")).values == (1.0,)

    asyncio.run(main())
    assert gate.names() == ["hang", "behind", "later"]
    left = gate.calls[0][1]
    assert left.is_alive(), "nobody waited for it"
    gate.go.set()
    left.join(LONG_S)
    assert not left.is_alive(), "its thread ends with the call"
    execution.close()


def test_a_call_over_its_limit_is_left_behind_and_a_call_that_waits_is_not(gate: Gate) -> None:
    execution = ThreadExecution(reward_of(gate), AlarmWatch())

    async def main() -> None:
        hanging = asyncio.ensure_future(run(execution, "hang", 0.2))
        await begun(gate)
        behind = asyncio.ensure_future(run(execution, "behind"))
        failure = (await hanging).failure
        assert failure is not None
        assert failure.fault is Fault.LIMIT
        assert (await behind).values == (1.0,)

    asyncio.run(main())
    gate.go.set()
    execution.close()


def test_the_main_thread_waits_for_the_call_beside_it(gate: Gate) -> None:
    """As in an evaluation, while the pipeline scores."""
    reward = reward_of(gate)
    execution = ThreadExecution(reward, AlarmWatch())

    async def main() -> None:
        beside = asyncio.ensure_future(run(execution, "hang"))
        await begun(gate)
        evaluating = asyncio.ensure_future(asyncio.to_thread(reward, ["evaluation"]))
        done, _ = await asyncio.wait([evaluating], timeout=0.1)
        assert not done
        gate.go.set()
        await asyncio.gather(beside, evaluating)

    asyncio.run(main())
    assert gate.names() == ["hang", "evaluation"]
    assert gate.most_inside == 1
    execution.close()


def test_the_main_thread_does_not_wait_for_a_call_that_was_given_up(gate: Gate) -> None:
    reward = reward_of(gate)
    execution = ThreadExecution(reward, AlarmWatch())

    async def main() -> None:
        beside = asyncio.ensure_future(run(execution, "hang"))
        await begun(gate)
        evaluating = asyncio.ensure_future(asyncio.to_thread(reward, ["evaluation"]))
        await asyncio.sleep(0.02)
        beside.cancel()
        assert await asyncio.wait_for(evaluating, LONG_S) == [1.0]

    asyncio.run(main())
    assert gate.names() == ["hang", "evaluation"]
    gate.go.set()
    execution.close()
