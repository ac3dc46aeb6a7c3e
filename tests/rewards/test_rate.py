"""Rate limits, retries and what may pass, in virtual time (scenario D 56)."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from swift_rlx.clock import LoopClock
from swift_rlx.errors import ConfigError, RewardError
from swift_rlx.rewards import AlarmWatch, OnError, RateLimits, checked_reward, describe_reward
from swift_rlx.rewards.execution import LoopExecution
from swift_rlx.rewards.rate import RateGate
from swift_rlx.rewards.runner import RewardRunner, RunnerSettings
from swift_rlx.rewards.spec import MARK, RewardMark
from swift_rlx.rewards.transient import is_transient, retry_after_s
from swift_rlx.testing import run_virtual


class Status(Exception):
    """As of an HTTP client."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.headers = status, headers


class Server:
    """Answers in 0.1 s, four at a time, and refuses the others; every seventh request fails with 503."""

    def __init__(
        self, status_of: Callable[[int], int] = lambda number: 503 if number % 7 == 6 else 200
    ) -> None:
        self.inside = self.most_inside = self.asked = 0
        self.status_of = status_of
        self.begins: list[float] = []

    async def __call__(self, completion: str) -> float:
        number, self.asked = self.asked, self.asked + 1
        self.begins.append(asyncio.get_running_loop().time())
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            if self.inside > 4:
                raise ConnectionRefusedError("full")
            await asyncio.sleep(0.1)
            if (status := self.status_of(number)) != 200:
                raise Status(status)
            return float(completion)
        finally:
            self.inside -= 1


def runner_of(target: Any, limits: RateLimits | None = None, policy: str = "raise") -> RewardRunner:
    if limits is not None:
        target.limits = limits
    reward, on_error = describe_reward("rm", target), OnError.parse(policy)
    checked: Any = checked_reward(reward, on_error)
    return RewardRunner(
        reward, LoopExecution(checked, AlarmWatch()), RunnerSettings(60.0, on_error), chance=lambda: 0.5
    )


def test_a_server_that_takes_four_at_a_time_is_never_asked_more_and_scores_every_row() -> None:
    server = Server()
    runner = runner_of(server, RateLimits(concurrency=4))
    texts = [str(number) for number in range(200)]
    scored = run_virtual(runner.score(texts, {}))
    assert scored.values == tuple(map(float, texts))
    assert server.most_inside == 4
    assert scored.counters.retries == server.asked - 200 > 0
    assert scored.counters.failed == 0


def test_a_request_that_is_wrong_is_an_error_at_once() -> None:
    server = Server(lambda number: 400)
    with pytest.raises(RewardError, match=r"raised Status: HTTP 400 .* on the row"):
        run_virtual(runner_of(server).score(["1"], {}))
    assert server.asked == 1


@pytest.mark.parametrize(("policy", "given"), [("none", None), ("value:7", None)])
def test_a_server_that_stays_down_is_given_up_and_its_fault_is_never_a_reward(
    policy: str, given: float | None
) -> None:
    server = Server(lambda number: 503)
    scored = run_virtual(runner_of(server, policy=policy).score(["1"], {}))
    assert scored.values == (given,)
    assert (server.asked, scored.counters.retries) == (4, 3)
    waits = [later - sooner - 0.1 for sooner, later in zip(server.begins, server.begins[1:], strict=False)]
    assert waits == pytest.approx([0.375, 0.75, 1.5]), "half a second, doubled, less a quarter by chance 0.5"
    with pytest.raises(RewardError, match="HTTP 503"):
        run_virtual(runner_of(Server(lambda number: 503)).score(["1"], {}))


def test_requests_a_minute_are_kept() -> None:
    server = Server(lambda number: 200)
    run_virtual(runner_of(server, RateLimits(4, requests_per_minute=30)).score(["1"] * 90, {}))
    assert server.begins[-1] == pytest.approx(120.0, abs=1.0), "30 at once, 60 at one in two seconds"


def test_tokens_a_minute_are_kept_and_a_long_call_waits_for_a_full_bucket() -> None:
    async def passes(amounts: list[float]) -> list[float]:
        gate, times = RateGate(RateLimits(64, tokens_per_minute=600), LoopClock()), []
        for amount in amounts:
            async with gate.passed(amount):
                times.append(asyncio.get_running_loop().time())
        return times

    assert run_virtual(passes([300, 300, 100, 1200, 10])) == pytest.approx([0, 0, 10, 70, 131])


@pytest.mark.parametrize(
    "given", [{"concurrency": 0}, {"requests_per_minute": -1.0}, {"tokens_per_minute": float("inf")}]
)
def test_a_limit_that_is_none_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"it must be above 0; leave it out for none$"):
        RateLimits(**given)


def test_limits_are_declared_with_the_reward() -> None:
    limits = RateLimits(concurrency=3)

    def limited(completion: str) -> float:
        return 1.0

    setattr(limited, MARK, RewardMark(limits=limits))
    assert describe_reward("limited", limited).limits is limits
    assert describe_reward("free", lambda completion: 1.0).limits == RateLimits()


class Marked(Exception):
    transient = True


@pytest.mark.parametrize(
    ("error", "is_async", "expected"),
    [
        (Status(503), False, True),
        (Status(429), False, True),
        (Status(404), True, False),
        (ConnectionResetError(), False, True),
        (Marked(), False, True),
        (TimeoutError(), True, True),
        (TimeoutError(), False, False),
        (ValueError(), True, False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Exception, is_async: bool, expected: bool) -> None:
    assert is_transient(error, is_async) is expected


def test_a_server_says_how_long_to_wait() -> None:
    assert retry_after_s(Status(429, **{"Retry-After": "7"})) == 7.0
    assert retry_after_s(Status(429, **{"Retry-After": "86400"})) == 60.0
    assert retry_after_s(Status(429, **{"Retry-After": "Fri, 01 Jan 2027"})) is None
    assert retry_after_s(ValueError()) is None
