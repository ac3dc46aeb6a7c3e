"""The client: failover, versions, what is tried again and what is not, and bytes that are no reply."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reward_services import SETUP, ScriptedService, running_service, scored_by, until, use_fake_workers

from swift_rlx.backends.remote_endpoint import ApiKey, parse_endpoint
from swift_rlx.errors import ConfigError, RewardError, RewardUnavailable
from swift_rlx.reward_service import Row, ServiceReward, client, parse_address, replica_calls, replicas
from swift_rlx.reward_service.pool import Batching
from swift_rlx.reward_service.service import ServiceConfig
from swift_rlx.reward_service.tenants import token_tenant
from swift_rlx.reward_service.wire import Listing, NotAReply, Refusal, decode, decode_scores


def run(job: Any) -> Any:
    return asyncio.run(asyncio.wait_for(job, 30))


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "RESTS_S", (0.01, 0.02))
    monkeypatch.setattr(replicas, "OTHER_VERSION_S", 0.01)


def reward(*urls: str, path: str = "length", limit_s: float = 10.0, **options: Any) -> ServiceReward:
    hosts = ",".join(url.removeprefix("http://") for url in urls)
    options = {"absent_limit_s": limit_s} | options
    return ServiceReward(parse_address(f"http://{hosts}/{path}"), limit_s=30.0, **options)


def test_an_address_names_replicas_versions_and_shadow():
    address = parse_address("http://a:1,b:2/helpful@v3,v4?shadow=v4")
    assert (address.name, address.versions, address.shadow) == ("helpful", ("v3", "v4"), "v4")
    assert address.endpoints == (parse_endpoint("http://a:1"), parse_endpoint("http://b:2"))
    bare = parse_address("https://host/n")
    assert (bare.name, bare.versions, bare.shadow) == ("n", (), "")
    assert bare.endpoints[0].url == "https://host:443"


@pytest.mark.parametrize(
    "text",
    ["http://a:1", "http://a:1/", "ftp://a:1/n", "http://a:1/n@", "http://a:1/n@v1?x=1", "http://a:1,a:1/n",
     "http://a:1/n@v1,v1", "http://a:1/n@v1?shadow=v1", "http://a:x/n", "http:///n", "http://a:1/n@v1,"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="--reward_funcs"):
        parse_address(text)


def test_a_password_in_an_address_is_refused_and_not_shown():
    with pytest.raises(ConfigError, match="SWIFT_RLX_REWARD_KEY") as refused:
        parse_address("http://me:geheim@a:1/n@v1")
    assert "geheim" not in str(refused.value)


def test_a_real_service_is_asked_with_its_token_and_only_for_the_columns_it_reads(monkeypatch):
    made = use_fake_workers(monkeypatch, names=("solved",))
    token = "a-token-of-the-test"
    tenant = token_tenant({"SWIFT_RLX_REWARD_TOKEN": token})
    config = ServiceConfig(SETUP, batching=Batching(8, 0.0), tenants=[tenant])

    async def job():
        async with running_service(config) as (url, _):
            known = reward(url, path="solved@v1", key=ApiKey(token))
            offer = await known.describe()
            scores = await known(["a", "bbb"], solution=["1", "2"], images=[b"", b""], trainer_state=object())
            with pytest.raises(RewardError, match="needs its token"):
                await reward(url, path="solved@v1").score([Row("a", {"solution": "1"})])
            return offer, scores

    offer, scores = run(job())
    assert (offer.version, offer.required, scores) == ("v1", ("solution",), [1.0, 3.0])
    assert [row.columns for row in made[0].batches[0]] == [{"solution": "1"}, {"solution": "2"}]


def test_a_row_that_failed_in_the_service_is_an_error_of_the_reward():
    def answer(request):
        return 200, {"version": "v1", "scores": [1.0, None], "faults": {"1": "raised KeyError: 'x'"}}, {}

    async def job():
        async with ScriptedService(answer) as service:
            known = reward(service.url)
            with pytest.raises(RewardError, match="length v1 failed on row 1: raised KeyError: 'x'"):
                await known(["a", "b"])
            return await known.answer([Row("a"), Row("b")])

    answer_ = run(job())
    assert (answer_.scores, answer_.faults) == ([1.0, None], {1: "raised KeyError: 'x'"})


def test_the_only_row_of_a_call_has_no_number_of_its_own():
    def answer(request):
        return 200, {"version": "v1", "scores": [None], "faults": {"0": "raised KeyError: 'x'"}}, {}

    async def job():
        async with ScriptedService(answer) as service:
            with pytest.raises(RewardError, match="length v1 failed: raised KeyError: 'x'"):
                await reward(service.url)(["a"])

    run(job())


def test_a_replica_that_fails_is_left_for_the_other():
    async def job():
        async with (
            ScriptedService(lambda _: (500, b"broken", {})) as bad,
            ScriptedService(scored_by("v1")) as good,
        ):
            known = reward(bad.url, good.url, path="length@v1")
            scores = await asyncio.gather(*(known.score([Row("x" * n)]) for n in range(40)))
            return scores, bad.calls["/v1/score"], good.calls["/v1/score"]

    scores, bad, good = run(job())
    assert scores == [[float(n)] for n in range(40)]
    assert bad < 40 <= good + bad


def test_a_replica_that_hangs_is_left_for_the_other_and_one_that_scores_for_long_is_not(monkeypatch):
    monkeypatch.setattr(replica_calls, "WATCH_S", 0.05)

    async def hang(_: Any) -> Any:
        await asyncio.Event().wait()

    async def slow(request: Any) -> Any:
        if request is not None:
            await asyncio.sleep(0.4)
            return scored_by("v1")(request)
        return 200, {}, {}

    async def job():
        async with ScriptedService(hang) as hanging, ScriptedService(slow) as good:
            scores = [
                await reward(hanging.url, good.url, path="length@v1").score([Row("abc")]) for _ in range(2)
            ]
            return scores, good.calls["/v1/score"], good.calls["/health"] > 0

    assert run(job()) == ([[3.0]] * 2, 2, True)


def test_the_version_after_is_used_at_once_where_the_one_before_is_gone_already():
    def listing(version):
        offer = {"name": "length", "version": version}
        return lambda request: scored_by(version)(request) if request else (200, {"rewards": [offer]}, {})

    async def job():
        async with ScriptedService(listing("v4")) as service:
            known = reward(service.url, path="length@v3,v4")
            offer = await known.describe()
            with pytest.raises(RewardError, match="is not served: version v4 is served"):
                await reward(service.url, path="length@v3").describe()
            return offer.version, (await known.answer([Row("a")])).version

    assert run(job()) == ("v4", "v4")


def test_a_service_that_is_not_there_is_waited_for_up_to_the_limit():
    async def job():
        with pytest.raises(
            RewardUnavailable, match=r"cannot be had for 0.3 s: http://127.0.0.1:9 cannot be reached"
        ):
            await reward("http://127.0.0.1:9", path="length@v1", limit_s=0.3).score([Row("a")])

    run(job())


def test_a_busy_service_is_asked_again_when_it_said_and_a_refusal_is_an_error_at_once(monkeypatch):
    replies = iter(
        [
            (503, {"detail": "busy"}, {"Retry-After": "0"}),
            (429, {"detail": "slow"}, {}),
            scored_by("v1"),
            (400, b"no", {}),
        ]
    )

    def answer(request):
        reply = next(replies)
        return reply(request) if callable(reply) else reply

    async def job():
        async with ScriptedService(answer) as service:
            known = reward(service.url)
            first = await known.score([Row("abc")])
            with pytest.raises(RewardError, match="status 400: no"):
                await known.score([Row("abc")])
            return first, service.calls["/v1/score"]

    monkeypatch.setattr(client, "BUSY_S", 0.01)
    assert run(job()) == ([3.0], 4)


def test_a_flood_of_calls_is_bounded(monkeypatch):
    monkeypatch.setattr(client, "MAX_INFLIGHT", 4)

    async def slow(request: dict[str, Any]) -> Any:
        await asyncio.sleep(0.002)
        return scored_by("v1")(request)

    async def job():
        async with ScriptedService(slow) as service:
            known = reward(service.url)
            scores = await asyncio.gather(*(known.score([Row("x")]) for _ in range(60)))
            return len(scores), service.max_inflight

    done, most = run(job())
    assert (done, most) == (60, 4)


def test_another_version_than_the_pinned_one_is_never_used():
    async def job():
        async with ScriptedService(scored_by("v4")) as service:
            with pytest.raises(RewardError, match="v4 is served"):
                await reward(service.url, path="length@v3", limit_s=0.3).score([Row("a")])
            lying = reward(service.url, path="length@v3", limit_s=0.3)
            service.answer = lambda request: (200, {"version": "v4", "scores": [1.0]}, {})
            with pytest.raises(RewardError, match="scored by version 'v4', and not by 'v3'"):
                await lying.score([Row("a")])

    run(job())


def test_replicas_are_replaced_one_by_one_and_the_new_version_comes_when_the_old_one_is_gone(caplog):
    async def job():
        async with ScriptedService(scored_by("v3")) as a, ScriptedService(scored_by("v3")) as b:
            known = reward(a.url, b.url, path="length@v3,v4")
            versions = []

            async def ask(times: int) -> None:
                answers = await asyncio.gather(*(known.answer([Row("x"), Row("yy")]) for _ in range(times)))
                for one in answers:
                    shift = 10.0 if one.version == "v4" else 0.0
                    assert one.scores == [1.0 + shift, 2.0 + shift]  # all rows of a call by one version
                versions.append({one.version for one in answers})

            await ask(20)
            a.answer = scored_by("v4", 10.0)
            await ask(20)
            asking = asyncio.ensure_future(ask(50))
            await asyncio.sleep(0.01)
            b.answer = scored_by("v4", 10.0)
            await asking
            await ask(20)
            a.answer = scored_by("v3")  # never back
            await ask(20)
            return versions, dict(known.rows_by_version), known.version

    with caplog.at_level(logging.WARNING, "swift_rlx"):
        versions, rows, version = run(job())
    assert versions[:2] == [{"v3"}, {"v3"}]
    assert versions[3:] == [{"v4"}, {"v4"}]
    assert version == "v4"
    assert set(rows) == {"v3", "v4"}
    assert sum(rows.values()) == 2 * 130
    assert caplog.text.count("version v3 is not served any more, v4 is used now") == 1


def test_without_a_version_the_first_one_is_used_and_a_change_is_noticed():
    async def job():
        async with ScriptedService(scored_by("v3")) as service:
            known = reward(service.url)
            first = await known.answer([Row("a")])
            service.answer = scored_by("v4", 10.0)
            second = await known.answer([Row("a")])
            return first.version, second.version, second.scores

    assert run(job()) == ("v3", "v4", [11.0])


def test_a_shadow_scores_the_same_rows_and_only_its_agreement_is_told(caplog):
    def inverse(request):
        status, body, headers = scored_by("v4")(request)
        if status == 200:
            body["scores"] = [2 * score for score in body["scores"]]
        return status, body, headers

    async def job():
        async with ScriptedService(scored_by("v3")) as used, ScriptedService(inverse) as tried:
            known = reward(used.url, tried.url, path="length@v3,v4?shadow=v4")
            scores = [await known.score([Row("x"), Row("yyy"), Row("zz")]) for _ in range(3)]
            await until(lambda: known.shadow.agreement.rows >= 9)
            agreement = known.shadow.agreement
            used.answer = inverse
            assert (await known.answer([Row("x")])).version == "v4"
            return scores, agreement

    with caplog.at_level(logging.INFO, "swift_rlx"):
        scores, agreement = run(job())
    assert f"reward 'length', v3 and its shadow v4: {agreement}" in caplog.text, "told when it comes into use"
    assert scores == [[1.0, 3.0, 2.0]] * 3
    assert (agreement.rows, agreement.num_pairs, agreement.num_same_order, agreement.difference_sum) == (
        9,
        9,
        9,
        18.0,
    )
    assert "9 rows, mean difference +2, absolute 2, 100.0% of 9 pairs in the same order" in str(agreement)


def test_a_reward_is_asked_from_one_event_loop_after_another():
    async def serve(stop: asyncio.Event, url: list[str]) -> None:
        async with ScriptedService(scored_by("v1")) as service:
            url.append(service.url)
            await stop.wait()

    async def job():
        stop, url = asyncio.Event(), []
        serving = asyncio.ensure_future(serve(stop, url))
        await until(lambda: bool(url))
        known = reward(url[0])
        scores = [await asyncio.to_thread(asyncio.run, known(["a", "bb"])) for _ in range(3)]
        stop.set()
        await serving
        return scores

    assert run(job()) == [[1.0, 2.0]] * 3


# --- bytes that are no reply ------------------------------------------------------------------------------------------

RIGHT = {"version": "v1", "scores": [1.0, None], "faults": {"1": "x"}}
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def damaged(choice: tuple[int, int]) -> bytes:
    at, byte = choice
    data = bytearray(json.dumps(RIGHT).encode())
    data[at % len(data)] = byte
    return bytes(data)


bodies = st.one_of(
    st.binary(max_size=60),
    anything.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(["version", "scores", "faults"]), anything).map(
        lambda v: json.dumps(v).encode()
    ),
    st.tuples(st.integers(0, 200), st.integers(0, 255)).map(damaged),
    st.integers(1, 5000).map(lambda depth: b"[" * depth),
    st.sampled_from([b'{"version":"v1","scores":[1e999,0]}', b'{"version":"v1","scores":[NaN,0]}']),
)
fuzz: Callable[..., Any] = settings(
    max_examples=1500, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
@fuzz
@given(bodies)
def test_whatever_the_bytes_are_decoding_gives_a_sound_reply_or_says_that_it_is_none(data):
    with contextlib.suppress(NotAReply):
        reply = decode_scores(data, 2)
        assert len(reply.scores) == 2
        assert all(score is None or abs(score) < float("inf") for score in reply.scores)
    for kind in (Listing, Refusal):
        with contextlib.suppress(NotAReply):
            assert isinstance(decode(data, kind), kind)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00\xff", b"[" * 4000, b'{"version":"v1","scores":[1]}', b'{"version":"v1","scores":[1,1e999]}',
     b'{"version":"","scores":[1,2]}', b'{"version":"v1","scores":[1,2],"faults":{"0":"x"}}',
     b'{"version":"v1","scores":[1,null],"faults":{"-1":"x"}}'],
)  # fmt: skip
@pytest.mark.parametrize("status", [200, 409, 500, 503])
def test_bad_bytes_end_in_a_reward_error_or_the_next_replica(data, status):
    async def job():
        async with (
            ScriptedService(lambda _: (status, data, {})) as bad,
            ScriptedService(scored_by("v1")) as good,
        ):
            assert await reward(bad.url, good.url, path="length@v1").score([Row("a"), Row("bb")]) == [
                1.0,
                2.0,
            ]
            with pytest.raises(RewardError, match=bad.url):
                await reward(bad.url, path="length@v1", limit_s=0.05).score([Row("a"), Row("bb")])
            with pytest.raises(RewardError, match="is not served"):
                await reward(bad.url, path="length@v1").describe()

    run(job())
