"""A replica that fails, and comes back: who is asked, and what the log says."""

from __future__ import annotations

import asyncio
import logging

import pytest
from reward_services import ScriptedService, scored_by

from swift_rlx.backends.remote_endpoint import parse_endpoint
from swift_rlx.reward_service import Row, ServiceReward, parse_address, replicas
from swift_rlx.reward_service.replicas import RESTS_S, Replicas


def two_replicas(now_s: list[float]) -> Replicas:
    endpoints = [parse_endpoint("http://a:1"), parse_endpoint("http://b:2")]
    made = Replicas(endpoints, ("v1",), lambda: now_s[0])
    made.know(["v1", "v1"])
    return made


def test_a_replica_that_failed_is_tried_by_one_call_at_a_time_and_then_asked_as_before() -> None:
    now_s = [0.0]
    known = two_replicas(now_s)
    a, b = known.all
    assert known.pick("v1") is a
    assert known.failed(a) is False
    assert [known.pick("v1") for _ in range(2)] == [b, b], "it rests"
    now_s[0] += RESTS_S[0]
    assert [known.pick("v1") for _ in range(3)] == [a, b, b], "one call finds out"
    assert known.failed(a) is True, "twice: it counts as gone"
    assert [known.pick("v1") for _ in range(2)] == [b, b]
    now_s[0] += RESTS_S[1]
    assert known.pick("v1") is a
    assert known.answered(a, "v1") is True
    assert [known.pick("v1") for _ in range(3)] == [a, a, a], "it is the less busy one"
    assert known.answered(a, "v1") is False


def test_when_there_is_no_time_left_a_replica_that_failed_is_not_tried() -> None:
    now_s = [0.0]
    known = two_replicas(now_s)
    a, b = known.all
    assert known.pick("v1") is a
    known.failed(a)
    now_s[0] = 50.0
    assert [known.pick("v1", is_late=True) for _ in range(2)] == [b, b]
    known.failed(b)
    known.failed(b)
    now_s[0] = 100.0
    assert known.pick("v1", is_late=True) is None
    assert known.pick("v1") is a


def test_a_replica_that_comes_back_with_another_version_is_told_of() -> None:
    known = two_replicas([0.0])
    a, _ = known.all
    for _ in range(2):
        a.rests_until_s = 0.0
        assert known.pick("v1") is not None
        known.failed(a)
    a.inflight = 1
    assert known.serves_another(a, "v2") is True
    a.inflight = 1
    assert known.serves_another(a, "v2") is False


def test_where_nobody_is_busy_the_one_that_did_not_fail_is_asked() -> None:
    now_s = [0.0]
    known = two_replicas(now_s)
    a, b = known.all
    assert known.pick("v1") is a
    known.failed(a)
    now_s[0] += RESTS_S[0]
    assert known.pick("v1") is b


def test_a_replica_that_is_lost_is_told_once_and_once_more_when_it_is_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "RESTS_S", (0.01, 0.02))

    async def job() -> str:
        async with (
            ScriptedService(lambda _: (500, b"broken", {})) as one,
            ScriptedService(scored_by("v1")) as other,
        ):
            urls = f"{one.url},{other.url.removeprefix('http://')}"
            known = ServiceReward(parse_address(f"{urls}/length@v1"))

            async def ask_until_told(words: str) -> None:
                while words not in caplog.text:
                    await asyncio.gather(*(known.score([Row("a")]) for _ in range(4)))

            await ask_until_told(
                f"reward 'length': {one.url} is left out until it answers again: {one.url} refused"
            )
            await asyncio.gather(*(known.score([Row("a")]) for _ in range(20)))
            one.answer = scored_by("v1")
            await ask_until_told(f"reward 'length': {one.url} answers again")
            return one.url

    with caplog.at_level(logging.INFO, "swift_rlx"):
        url = asyncio.run(asyncio.wait_for(job(), 30))
    assert caplog.text.count(f"{url} is left out") == caplog.text.count(f"{url} answers again") == 1
