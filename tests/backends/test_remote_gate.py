"""What is on its way to a server: limits of requests and tokens, in their order, and a server that asks for quiet."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from swift_rlx.backends import remote_gate
from swift_rlx.backends.remote_gate import Gate, InflightLimits
from swift_rlx.errors import BackendUnavailable, ConfigError
from swift_rlx.testing import run_virtual


class Visits:
    """Requests at a gate; each stays until it is told to leave."""

    def __init__(self, **limits: int | None) -> None:
        self.gate = Gate("http://a:1", InflightLimits(**limits))
        self.inside: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, tokens: int = 10) -> None:
        self.leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.ensure_future(self._visit(name, tokens))
        await settle()

    async def go(self, name: str) -> None:
        self.leave[name].set()
        await settle()

    async def _visit(self, name: str, tokens: int) -> None:
        async with self.gate.place(tokens):
            self.inside.append(name)
            await self.leave[name].wait()
            self.inside.remove(name)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_without_limits_everybody_is_let_in() -> None:
    async def test() -> None:
        gate = Gate("http://a:1", InflightLimits())
        async with AsyncExitStack() as stack:
            for _ in range(1000):
                await stack.enter_async_context(gate.place(10**6))
            assert (gate.requests, gate.tokens) == (1000, 10**9)
        assert (gate.requests, gate.tokens) == (0, 0)

    run_virtual(test())


def test_no_more_requests_than_the_limit_are_inside_and_they_come_in_their_order() -> None:
    async def test() -> None:
        visits = Visits(requests=2)
        for name in "abcd":
            await visits.come(name)
        assert visits.inside == ["a", "b"]
        await visits.go("b")
        assert visits.inside == ["a", "c"]
        await visits.go("a")
        assert visits.inside == ["c", "d"]

    run_virtual(test())


def test_no_more_tokens_than_the_limit_are_inside_and_a_small_one_does_not_overtake_a_large_one() -> None:
    async def test() -> None:
        visits = Visits(tokens=100)
        for name, tokens in {"a": 60, "large": 50, "small": 10}.items():
            await visits.come(name, tokens)
        assert visits.inside == ["a"]
        await visits.go("a")
        assert visits.inside == ["large", "small"]
        assert visits.gate.tokens == 60

    run_virtual(test())


def test_a_request_above_the_limit_goes_alone() -> None:
    async def test() -> None:
        visits = Visits(tokens=100)
        await visits.come("a", 10)
        await visits.come("huge", 500)
        assert visits.inside == ["a"]
        await visits.go("a")
        assert visits.inside == ["huge"]
        await visits.come("b", 1)
        assert visits.inside == ["huge"]
        await visits.go("huge")
        assert visits.inside == ["b"]

    run_virtual(test())


def test_who_stops_waiting_takes_no_place() -> None:
    async def test() -> None:
        visits = Visits(requests=1)
        for name in "abc":
            await visits.come(name)
        visits.tasks["b"].cancel()
        await settle()
        await visits.go("a")
        assert visits.inside == ["c"]
        await visits.go("c")
        assert visits.gate.requests == 0

    run_virtual(test())


def test_who_stops_waiting_in_the_moment_of_its_turn_gives_the_place_on() -> None:
    async def test() -> None:
        visits = Visits(requests=1)
        for name in "abc":
            await visits.come(name)
        visits.leave["a"].set()
        await asyncio.sleep(0)  # a has left, b's turn has come, b has not run yet
        visits.tasks["b"].cancel()
        await settle()
        assert visits.inside == ["c"]
        assert visits.gate.requests == 1

    run_virtual(test())


def test_while_the_server_wants_quiet_nobody_is_let_in() -> None:
    async def test() -> None:
        visits = Visits()
        visits.gate.close_for(3.0)
        visits.gate.close_for(1.0)
        assert visits.gate.closed_s == pytest.approx(3.0)
        await visits.come("a")
        await asyncio.sleep(2.9)
        assert not visits.inside
        await asyncio.sleep(0.2)
        assert visits.inside == ["a"]
        assert visits.gate.closed_s == 0

    run_virtual(test())


def test_the_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_gate, "MAX_WAITING", 2)

    async def test() -> None:
        visits = Visits(requests=1)
        for name in "abc":
            await visits.come(name)
        with pytest.raises(BackendUnavailable, match="http://a:1 has 2 requests waiting, which is the limit"):
            async with visits.gate.place(1):
                pass

    run_virtual(test())


@pytest.mark.parametrize("limits", [{"requests": 0}, {"tokens": -1}])
def test_a_limit_below_one_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="in flight is refused: use at least 1, or None"):
        InflightLimits(**limits)
