"""The service over HTTP, with scorers in the place of worker processes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import msgspec
import pytest
from reward_services import SETUP, FakeWorker, running_service, until, use_fake_workers

from swift_rlx.reward_service.pool import Batching
from swift_rlx.reward_service.service import ServiceConfig
from swift_rlx.reward_service.tenants import Tenant, token_tenant

BATCHING = Batching(max_rows=8, window_s=0.0, limit_s=20.0)
TOKEN = "a-token-of-the-test"
OWNER = token_tenant({"SWIFT_RLX_REWARD_TOKEN": TOKEN})


def config(**changes: Any) -> ServiceConfig:
    return ServiceConfig(**{"setup": SETUP, "batching": BATCHING} | changes)


async def post(url: str, body: Any, path: str = "/v1/score", token: str = "") -> tuple[int, Any, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + path, data=data, headers=headers) as response,
    ):
        return response.status, await response.json(content_type=None), response.headers


async def get(url: str, token: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, await response.text()


def rows(*texts: str) -> dict[str, Any]:
    return {"reward": "length", "rows": [{"completion": text} for text in texts]}


def serving(job: Any, settings: ServiceConfig | None = None) -> Any:
    async def go() -> Any:
        async with running_service(settings or config()) as (url, service):
            return await job(url, service)

    return asyncio.run(asyncio.wait_for(go(), 30))


def test_rows_are_scored_in_order_with_version_and_faults(monkeypatch):
    use_fake_workers(monkeypatch)

    async def job(url, service):
        return await post(url, rows("a", "bad", "ccc"))

    status, reply, _ = serving(job)
    assert status == 200
    assert reply == {"version": "v1", "scores": [1.0, None, 3.0], "faults": {"1": "raised ValueError"}}


def test_rows_of_several_requests_are_scored_together(monkeypatch):
    made = use_fake_workers(monkeypatch)

    async def job(url, service):
        replies = await asyncio.gather(*(post(url, rows("x" * n)) for n in range(1, 7)))
        return [reply["scores"] for _, reply, _ in replies]

    patient = config(batching=Batching(max_rows=6, window_s=20.0))
    assert serving(job, patient) == [[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]]
    assert [len(batch) for batch in made[0].batches] == [6]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 422, "sent no ScoreRequest"), (b"\xff\xfe", 422, "sent no ScoreRequest"),
        (b"[" * 5000, 422, "sent no ScoreRequest"), ({"reward": "length"}, 422, "rows"),
        ({"reward": "other", "rows": []}, 404, "'other' is not served; there are length, solved"),
        (rows("a") | {"version": "v2"}, 409, "length v2 was asked for, and v1 is served"),
        (rows("a") | {"reward": "solved"}, 422, "row 0 lacks the columns ['solution'] that solved needs"),
        (rows(*["a"] * 4097), 413, "4097 rows"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_served_is_refused_in_one_sentence(monkeypatch, body, status, words):
    use_fake_workers(monkeypatch, names=("length", "solved"))

    async def job(url, service):
        return await post(url, body)

    got, reply, _ = serving(job)
    assert got == status
    assert words in reply["detail"]
    assert reply["serves"] == ("v1" if status == 409 else "")


def test_health_answers_while_scoring_and_to_everybody(monkeypatch):
    made = use_fake_workers(monkeypatch)

    async def job(url, service):
        scoring = asyncio.ensure_future(post(url, rows("hang"), token=TOKEN))
        await until(lambda: bool(made[0].batches))
        health = await get(f"{url}/health")
        scoring.cancel()
        return health

    status, text = serving(job, config(tenants=[OWNER]))
    assert (status, json.loads(text)) == (200, {"ready": 1, "workers": 1, "versions": {"length": "v1"}})


@pytest.mark.parametrize("path", ["/metrics", "/v1/rewards", "/v1/score", "/v1/workers"])
def test_everything_but_health_needs_the_token(monkeypatch, path):
    use_fake_workers(monkeypatch)

    async def job(url, service):
        if path in ("/metrics", "/v1/rewards"):
            return [(await get(url + path, token))[0] for token in ("", "wrong", TOKEN)]
        body = rows("a") if path == "/v1/score" else {"workers": 1}
        return [(await post(url, body, path, token))[0] for token in ("", "wrong", TOKEN)]

    assert serving(job, config(tenants=[OWNER])) == [401, 401, 200]


def test_a_tenant_over_its_limits_is_refused_and_the_other_is_served(monkeypatch):
    use_fake_workers(monkeypatch)
    red, blue = "red-token-of-test", "blue-token-of-test"
    tenants = [
        Tenant("red", token_tenant({"SWIFT_RLX_REWARD_TOKEN": red}).digest, 10, 3),
        Tenant("blue", token_tenant({"SWIFT_RLX_REWARD_TOKEN": blue}).digest),
    ]

    async def job(url, service):
        first = await post(url, rows("a"), token=red)
        second = await post(url, rows("a"), token=red)
        other = await post(url, rows("a"), token=blue)
        return first[0], second[0], second[1]["detail"], second[2]["Retry-After"], other[0]

    first, second, words, retry_after, other = serving(job, config(tenants=tenants))
    assert (first, second, other) == (200, 429, 200)
    assert words == "the tenant 'red' is over its 10 requests a minute"
    assert 1 <= int(retry_after) <= 6


@pytest.mark.slow
def test_a_row_that_ends_or_hangs_its_worker_costs_itself_only(monkeypatch):
    made = use_fake_workers(monkeypatch)

    async def job(url, service):
        died = await post(url, rows("a", "die", "ccc"))
        hung = await post(url, rows("a", "hang"))
        await until(lambda: len(made) == 5 and service.pool.ready == 1)
        return died[1], hung[1], service.pool.ready

    died, hung, _ = serving(job, config(batching=Batching(8, 0.0, 1.0)))
    assert died["scores"] == [1.0, None, 3.0]
    assert "ended on this row: worker" in died["faults"]["1"]
    assert hung["scores"] == [1.0, None]
    assert "longer than 1 s" in hung["faults"]["1"]
    assert len(made) == 5  # two rows ended two workers each: in company, and alone
    assert [worker.is_closed for worker in made] == [True] * 5


def test_workers_are_added_and_removed_while_it_runs(monkeypatch):
    made = use_fake_workers(monkeypatch)

    async def job(url, service):
        added = await post(url, {"workers": 3}, "/v1/workers")
        await until(lambda: service.pool.ready >= 3)
        removed = await post(url, {"workers": 1}, "/v1/workers")
        await until(lambda: sum(worker.is_closed for worker in made) >= 2)
        still = await post(url, rows("abc"))
        refused = await post(url, {"workers": 0}, "/v1/workers")
        return added[1], removed[1], still[1]["scores"], refused[0]

    assert serving(job) == ({"workers": 3}, {"workers": 1}, [3.0], 422)


def test_a_new_worker_of_another_version_is_not_let_in(monkeypatch, caplog):
    made = use_fake_workers(monkeypatch)

    async def job(url, service):
        service.pool._setup = msgspec.structs.replace(SETUP, version="v2")  # a package was upgraded meanwhile
        service.resize(Tenant("owner", is_admin=True), 2)
        await until(lambda: len(made) == 2 and made[1].is_closed)
        return (await post(url, rows("abc")))[1], service.pool.ready

    reply, ready = serving(job)
    assert (reply["version"], reply["scores"], ready) == ("v1", [3.0], 1)
    assert "a new worker has length v2, and the service serves length v1" in caplog.text


def test_a_tenant_that_is_no_admin_changes_nothing(monkeypatch):
    use_fake_workers(monkeypatch)

    async def job(url, service):
        return await post(url, {"workers": 3}, "/v1/workers", TOKEN), service.pool.size

    (status, reply, _), size = serving(job, config(tenants=[Tenant("red", OWNER.digest)]))
    assert (status, reply["detail"], size) == (
        403,
        "the tenant 'red' may not change the number of workers",
        1,
    )


def test_a_full_queue_is_a_503_that_says_when_to_come_again(monkeypatch):
    made = use_fake_workers(monkeypatch)

    async def job(url, service):
        hanging = asyncio.ensure_future(post(url, rows("hang")))
        await until(lambda: bool(made[0].batches))
        waiting = asyncio.ensure_future(post(url, rows("a", "b")))
        await until(lambda: service.metrics.text().count(b"rlx_reward_queued_rows 2.0") > 0)
        refused = await post(url, rows("c"))
        hanging.cancel()
        waiting.cancel()
        return refused

    status, reply, headers = serving(job, config(max_queued_rows=2))
    assert (status, reply["detail"], headers["Retry-After"]) == (
        503,
        "the service is busy: 2 rows wait, and 2 may",
        "1",
    )


def test_rows_of_a_client_that_went_away_are_not_scored(monkeypatch):
    made = use_fake_workers(monkeypatch)

    async def job(url, service):
        hanging = asyncio.ensure_future(post(url, rows("hang")))
        await until(lambda: bool(made[0].batches))
        leaving = asyncio.ensure_future(post(url, rows("never")))
        await until(lambda: service.metrics.text().count(b"rlx_reward_queued_rows 1.0") > 0)
        leaving.cancel()
        await until(lambda: service.metrics.text().count(b'status="499"') > 0)
        FakeWorker.release.set()
        await hanging
        await post(url, rows("later"))
        return [row.completion for worker in made for batch in worker.batches for row in batch]

    assert serving(job) == ["hang", "later"]


def test_metrics_are_in_the_format_of_prometheus(monkeypatch):
    use_fake_workers(monkeypatch)

    async def job(url, service):
        await post(url, rows("a", "bad"))
        return (await get(f"{url}/metrics"))[1]

    text = serving(job)
    for line in [
        'rlx_reward_requests_total{status="200",tenant="everybody"} 1.0',
        'rlx_reward_rows_total{outcome="scored",reward="length"} 1.0',
        'rlx_reward_rows_total{outcome="failed",reward="length"} 1.0',
        "rlx_reward_batch_rows_count 1.0",
        'rlx_reward_workers{state="ready"} 1.0',
        "rlx_reward_queued_rows 0.0",
    ]:
        assert line in text.splitlines()


def test_a_request_that_was_let_in_is_answered_before_the_service_ends(monkeypatch):
    made = use_fake_workers(monkeypatch)

    async def job(url, service):
        asking = asyncio.ensure_future(post(url, rows("abc")))
        await until(lambda: bool(made[0].batches))
        return asking

    async def go():
        async with running_service(config()) as (url, service):
            asking = await job(url, service)
        return (await asking)[1]["scores"], [worker.is_closed for worker in made]

    assert asyncio.run(asyncio.wait_for(go(), 30)) == ([3.0], [True])


def test_a_plugin_file_that_changed_is_not_served_under_the_version_of_the_old_one(
    monkeypatch, tmp_path, caplog
):
    made = use_fake_workers(monkeypatch)
    plugin = tmp_path / "live.py"
    plugin.write_text("first", encoding="utf-8")

    async def job(url, service):
        plugin.write_text("second", encoding="utf-8")
        service.pool.resize(2)
        await until(lambda: "live.py was changed since the service started" in caplog.text)
        return len(made), (await post(url, rows("abc")))[1]

    started, scored = serving(job, config(setup=msgspec.structs.replace(SETUP, plugins=[str(plugin)])))
    assert started == 1
    assert scored["scores"] == [3.0]
