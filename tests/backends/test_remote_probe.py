"""What a server is found out to be, and what is refused at the start with the change that mends it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from remote_runs import ADAPTER, FULL, needs, run
from stand_in_server import Fault, StandIn, always
from stand_in_sglang import StandInSglang
from stand_in_vllm import StandInVllm

from swift_rlx.backends.remote_dialect import Ability, ServerFacts, ServerKind, ServerNeeds
from swift_rlx.backends.remote_endpoint import ApiKey
from swift_rlx.backends.remote_http import HttpClient
from swift_rlx.backends.remote_probe import identify
from swift_rlx.backends.remote_server import RemoteServer
from swift_rlx.errors import BackendUnavailable, BackendUnfit, WorkerAbsent
from swift_rlx.types import SamplingParams

IDS = tuple(range(3, 9))


def facts_of(stand_in: StandIn, key: ApiKey | None = None) -> ServerFacts:
    async def go() -> ServerFacts:
        client = HttpClient(stand_in.endpoint, key)
        try:
            return (await identify(client, IDS))[1]
        finally:
            await client.close()

    return run(stand_in, go())


def start(stand_in: StandIn, wanted: ServerNeeds, key: ApiKey | None = None) -> None:
    async def go() -> None:
        await RemoteServer(stand_in.endpoint, wanted, key=key).start()

    run(stand_in, go())


def test_a_vllm_that_was_started_as_needed_lacks_nothing(tmp_path: Path) -> None:
    facts = facts_of(StandInVllm(tmp_path))
    assert (facts.kind, facts.version, facts.model, facts.max_model_len) == (
        ServerKind.VLLM,
        "0.32.0",
        "tiny",
        60,
    )
    assert facts.lacks == {}
    assert facts.root.endswith("base")
    assert facts.is_open
    assert facts.keeps()


@pytest.mark.parametrize("is_old", [False, True])
def test_an_sglang_that_was_started_as_needed_lacks_log_probs_under_filters_alone(
    tmp_path: Path, is_old: bool
) -> None:
    facts = facts_of(StandInSglang(tmp_path, is_old=is_old))
    assert (facts.kind, facts.version, facts.max_adapter_rank) == (ServerKind.SGLANG, "0.5.9", 8)
    assert facts.lacks.keys() == {Ability.FILTERS}
    assert not facts.keeps()
    assert not facts.is_open


def test_a_vllm_is_asked_by_nothing_that_it_logs_a_traceback_of(tmp_path: Path) -> None:
    stand_in = StandInVllm(tmp_path)
    assert facts_of(stand_in).lacks == {}
    asked = dict(stand_in.bodies)
    assert asked["/inference/v1/abort_requests"] == {"request_ids": []}
    assert all("token_ids" in body for path, body in stand_in.bodies if path == "/inference/v1/generate")
    assert not any(body.get("lora_path") for path, body in stand_in.bodies)


def test_a_vllm_that_counts_nothing_is_asked_for_an_adapter_that_is_nowhere(tmp_path: Path) -> None:
    assert facts_of(StandInVllm(tmp_path, metrics=False)).lacks == {}
    assert facts_of(StandInVllm(tmp_path, metrics=False, lora=False)).lacks.keys() == {Ability.ADAPTERS}


VLLM_LACKS = [
    ({"scale_out": False}, FULL, Ability.TOKENS, "start it with --enable-scale-out"),
    ({"is_raw": True}, FULL, Ability.LOGPROBS, "start it with --logprobs-mode processed_logprobs"),
    ({"dev_mode": False}, FULL, Ability.WEIGHTS, "set VLLM_SERVER_DEV_MODE=1 in its environment and start it with"
     " --weight-transfer-config '{\"backend\":\"rlx_file\"}'"),
    ({"transfer": False}, FULL, Ability.WEIGHTS, "install this package beside it and start it with --weight-transfer"),
    ({"runtime_lora": False}, ADAPTER, Ability.ADAPTERS, "set VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"),
    ({"lora": False}, ADAPTER, Ability.ADAPTERS, "start it with --enable-lora (it says: Call to add_lora"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "kind", "ability", "change"), VLLM_LACKS)
def test_what_a_vllm_lacks_is_refused_with_the_flag_that_mends_it(
    tmp_path: Path, flags: dict[str, bool], kind: Any, ability: Ability, change: str
) -> None:
    stand_in = StandInVllm(tmp_path, **flags)
    with pytest.raises(BackendUnfit) as caught:
        start(stand_in, needs(kind))
    url, words = stand_in.endpoint.url, str(caught.value)
    assert words.startswith(f"{url} (vLLM 0.32.0) lacks {ability.value}: {change}")
    assert words.endswith(f"swift-rlx doctor --endpoint {url} prints the command that starts one as needed")


@pytest.mark.parametrize(
    ("flags", "kind"),
    [({"dev_mode": False, "transfer": False}, ADAPTER), ({"runtime_lora": False, "lora": False}, FULL)],
)
def test_what_the_run_does_not_need_may_be_lacking(tmp_path: Path, flags: dict[str, bool], kind: Any) -> None:
    start(StandInVllm(tmp_path, **flags), needs(kind))


def test_an_sglang_without_lora_or_with_log_probs_of_its_own_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendUnfit, match="lacks LoRA adapters while it runs: start it with --enable-lora"):
        start(StandInSglang(tmp_path, lora=False), needs(ADAPTER))
    with pytest.raises(
        BackendUnfit, match="at the temperature: unset SGLANG_RETURN_ORIGINAL_LOGPROB in its env"
    ):
        start(StandInSglang(tmp_path, is_raw=True), needs(FULL, keeps=False))
    with pytest.raises(BackendUnfit, match=r"takes adapters up to rank 8, and rank 32 .* --max-lora-rank 32"):
        start(StandInSglang(tmp_path), needs(ADAPTER, max_adapter_rank=32))


@pytest.mark.parametrize("filters", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
def test_filters_are_refused_where_log_probs_do_not_know_them(
    tmp_path: Path, filters: dict[str, Any]
) -> None:
    sampling = SamplingParams(**filters)
    start(StandInVllm(tmp_path), needs(FULL, sampling=sampling))
    with pytest.raises(
        BackendUnfit, match=r"top_p, top_k or min_p: SGLang gives them before filters: use --top_p 1"
    ):
        start(StandInSglang(tmp_path), needs(FULL, keeps=False, sampling=sampling))


def test_an_sglang_among_servers_that_keep_answers_in_flight_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendUnfit, match="is SGLang, and the others of this run are vLLM: use one kind"):
        start(StandInSglang(tmp_path), needs(FULL, keeps=True))


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        (None, "the variable SWIFT_RLX_API_KEY has to hold its key"),
        (ApiKey("wrong"), "the key in SWIFT_RLX_API_KEY is not the one that it wants"),
    ],
)
def test_a_missing_and_a_wrong_key_are_told_apart(tmp_path: Path, key: ApiKey | None, remedy: str) -> None:
    with pytest.raises(BackendUnfit, match=f"/v1/models with status 401: Unauthorized.*{remedy}") as caught:
        start(StandInVllm(tmp_path, key="right"), needs(FULL), key)
    assert "wrong" not in str(caught.value)
    start(StandInVllm(tmp_path, key="right"), needs(FULL), ApiKey("right"))


OTHERS = [
    (Fault(404, b"<html>nginx</html>"), BackendUnfit, "/v1/models with status 404: <html>nginx</html>"),
    (Fault(302, b"", {"Location": "http://login/"}), BackendUnfit, "with status 302"),
    (Fault(200, b"<html>"), BackendUnfit, "is no server of vLLM or SGLang: its /v1/models is no list"),
    (Fault(200, b'{"data": []}'), BackendUnfit, "its model is owned by 'nobody'"),
    (
        Fault(200, b'{"data": [{"id": "gpt", "owned_by": "openai"}]}'),
        BackendUnfit,
        "owned by 'openai'; give the addr",
    ),
    (Fault(500, b"loading"), BackendUnavailable, "with status 500: loading"),
    (Fault(503, b""), BackendUnavailable, "with status 503"),
    (Fault(breaks_off=True), BackendUnavailable, "broke off"),
]


@pytest.mark.parametrize(("fault", "error", "words"), OTHERS, ids=[one[2][:40] for one in OTHERS])
def test_what_is_no_rollout_server_is_refused_and_what_may_become_one_is_not(
    tmp_path: Path, fault: Fault, error: type[Exception], words: str
) -> None:
    stand_in = StandInVllm(tmp_path)
    stand_in.fault = always(fault, "/v1/models")
    with pytest.raises(error, match=words) as caught:
        start(stand_in, needs(FULL))
    assert type(caught.value) is error


@pytest.mark.parametrize("path", ["/version", "/inference/v1/generate"])
def test_a_vllm_that_answers_like_no_vllm_is_not_used(tmp_path: Path, path: str) -> None:
    stand_in = StandInVllm(tmp_path)
    stand_in.fault = always(Fault(200, b'{"choices": [], "version": 7}'), path)
    with pytest.raises(BackendUnavailable, match="answers otherwise than vLLM does"):
        start(stand_in, needs(FULL))


def test_a_model_that_tells_nothing_about_log_probs_is_refused(tmp_path: Path) -> None:
    stand_in = StandInVllm(tmp_path)
    stand_in.full.engine._weights.logits_VV[:] = 0.0
    original = stand_in._forget
    stand_in._forget = lambda: (original(), stand_in.full.engine._weights.logits_VV.fill(0.0))  # type: ignore[func-returns-value, method-assign, assignment]
    with pytest.raises(BackendUnfit, match="its model finds all tokens equally likely"):
        start(stand_in, needs(FULL))


def test_a_server_that_is_gone_is_a_dead_worker(tmp_path: Path) -> None:
    stand_in = StandInVllm(tmp_path)

    async def go() -> None:
        await stand_in.start()
        await stand_in.stop()
        await RemoteServer(stand_in.endpoint, needs(FULL)).start()

    with pytest.raises(WorkerAbsent, match="cannot be reached: connection refused"):
        asyncio.run(go())
