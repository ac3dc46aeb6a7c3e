"""A rollout server as a backend: what it is told, how its weights are followed, and when it is another one."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_runs import ADAPTER, FULL, SERVERS, START, each_server, needs, request, run, started, weights
from stand_in_server import Fault, StandIn, always
from stand_in_sglang import StandInSglang
from stand_in_vllm import StandInVllm
from worker_runs import until

from swift_rlx.backends import WeightKind
from swift_rlx.backends.remote_endpoint import ApiKey
from swift_rlx.backends.remote_gate import InflightLimits
from swift_rlx.backends.remote_server import NOT_OURS, RemoteServer
from swift_rlx.errors import (
    BackendError,
    BackendRejected,
    BackendUnavailable,
    WorkerDied,
)
from swift_rlx.testing import EngineCase, check_engine
from swift_rlx.types import FinishReason

# --- the rules of an engine, over HTTP -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "what"), [SERVERS[0], *(pytest.param(*one, marks=pytest.mark.slow) for one in SERVERS[1:])]
)
def test_a_server_keeps_the_rules_of_an_engine(kind: type[StandIn], what: WeightKind, tmp_path: Path) -> None:
    files = [weights(tmp_path, seed, what) for seed in (1, 2)]
    stand_in = kind(tmp_path, token_s=0.0005)

    class Started(RemoteServer):
        async def close(self) -> None:
            await super().close()
            await stand_in.stop()

    async def make() -> RemoteServer:
        await stand_in.start()
        server = Started(stand_in.endpoint, needs(what, keeps=kind is StandInVllm and what is FULL))
        await server.start()
        await server.publish(START, files[0])
        return server

    case = EngineCase(vocabulary=16, max_model_len=60, weights=files)
    if kind is StandInSglang:  # its log-probs do not know filters, which is refused where a run uses them
        with pytest.raises(
            AssertionError, match=r"breaks 1 rule\(s\):\n- temperature_zero.*: with top_k 1 every"
        ):
            check_engine(make, case)
    else:
        check_engine(make, case)


def test_what_a_server_can_live_through_follows_from_its_kind(tmp_path: Path) -> None:
    def of(what: WeightKind, keeps: bool) -> tuple[bool, bool]:
        stand_in = StandInVllm(tmp_path)
        one = RemoteServer(replace(stand_in.endpoint, port=1), needs(what, keeps=keeps)).capabilities
        return one.keep, one.pin

    assert of(FULL, True) == (True, False)
    assert of(FULL, False) == (False, False)
    assert of(ADAPTER, False) == (False, True)


# --- requests --------------------------------------------------------------------------------------------------------


@each_server
def test_a_request_carries_all_of_its_sampling(kind: type[StandIn], what: WeightKind, tmp_path: Path) -> None:
    stand_in, files = kind(tmp_path), weights(tmp_path, 1, what)
    sampling = {
        "max_tokens": 5, "temperature": 0.7, "top_p": 0.9, "top_k": 4, "min_p": 0.01, "repetition_penalty": 1.1,
        "stop": ("END",), "stop_token_ids": (15,), "barred_token_ids": (0, 2), "seed": 11,
    }  # fmt: skip

    async def test() -> None:
        server = await started(stand_in, files)
        await server.generate(request(1, 2, 3, **sampling))
        await server.generate(request(1, 2, 3))
        await server.close()

    run(stand_in, test())
    path = "/inference/v1/generate" if kind is StandInVllm else "/generate"
    sent, plain = [body for called, body in stand_in.bodies if called == path][-2:]
    given = sent["sampling_params"]
    names = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"} if kind is StandInSglang else {}
    for name, value in sampling.items():
        if name != "barred_token_ids":
            assert given[names.get(name, name)] == (list(value) if isinstance(value, tuple) else value), name
    assert given["logit_bias"] == {"0": -1e9, "2": -1e9}
    assert sent["token_ids" if kind is StandInVllm else "input_ids"] == [1, 2, 3]
    assert "logit_bias" not in plain["sampling_params"]
    assert plain["sampling_params"]["top_k"] == (0 if kind is StandInVllm else -1)
    asked_for = plain.get("model") or plain.get("lora_path")
    assert (asked_for is not None) == (what is ADAPTER)


def test_a_prompt_without_room_or_with_encoded_inputs_is_refused_without_asking(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path), weights(tmp_path, 1)

    async def test() -> None:
        server = await started(stand_in, files)
        asked = stand_in.calls["/inference/v1/generate"]
        full = request(*[1] * 60)
        with pytest.raises(
            BackendRejected, match=r"a prompt of 60 tokens leaves no room on http://.*1 to 60 in all"
        ):
            await server.generate(full)
        seeing = request()
        seeing = replace(seeing, prompt=replace(seeing.prompt, model_inputs={"pixels": np.zeros(1)}))
        with pytest.raises(BackendRejected, match=r"has encoded inputs \(pixels\)"):
            await server.generate(seeing)
        assert stand_in.calls["/inference/v1/generate"] == asked

    run(stand_in, test())


@each_server
def test_the_longest_answer_is_cut_to_the_room_that_there_is(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    stand_in, files = kind(tmp_path), weights(tmp_path, 1, what)

    async def test() -> None:
        server = await started(stand_in, files)
        answer = await server.generate(request(1, 2, max_tokens=1000))
        assert (answer.num_tokens, answer.finish_reason) == (58, FinishReason.LENGTH)

    run(stand_in, test())


def test_tokens_on_their_way_stay_within_the_limit(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path, token_s=0.001), weights(tmp_path, 1)

    async def test() -> None:
        server = await started(stand_in, files, limits=InflightLimits(tokens=25))
        most = 0

        def watch(path: str, body: dict[str, Any]) -> None:
            nonlocal most
            most = max(most, stand_in.inflight + 1)

        stand_in.fault = watch  # type: ignore[assignment]
        answers = await asyncio.gather(*(server.generate(request(seed=seed)) for seed in range(10)))
        assert [one.num_tokens for one in answers] == [8] * 10
        assert most == 2  # 3 tokens of the prompt and 8 of the answer each
        await server.close()

    run(stand_in, test())


def test_an_answer_that_waits_for_its_place_is_ended_without_being_sent(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path, token_s=0.002), weights(tmp_path, 1)

    async def test() -> None:
        server = await started(stand_in, files, limits=InflightLimits(requests=1))
        first = asyncio.ensure_future(server.generate(request(name="first", max_tokens=50)))
        second = asyncio.ensure_future(server.generate(request(name="second")))
        await until(lambda: stand_in.inflight == 1)
        await server.abort(["second"])
        answer = await second
        assert (answer.num_tokens, answer.finish_reason) == (0, FinishReason.ABORT)
        assert (await first).num_tokens == 50

    run(stand_in, test())


def test_an_abort_that_came_before_the_server_knew_the_request_is_said_again(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path, token_s=0.01), weights(tmp_path, 1)
    lost = []

    def lose_the_first(path: str, body: dict[str, Any]) -> Fault | None:
        if path == "/inference/v1/abort_requests" and not lost:
            lost.append(body)
            return Fault(200)
        return None

    async def test() -> None:
        server = await started(stand_in, files)
        stand_in.fault = lose_the_first
        asking = asyncio.ensure_future(server.generate(request(name="a", max_tokens=57)))
        await until(lambda: stand_in.inflight == 1)
        await server.abort(["a", "unknown"])
        answer = await asking
        assert answer.finish_reason is FinishReason.ABORT
        assert answer.fault() is None

    run(stand_in, test())
    assert lost


def test_a_request_that_nobody_waits_for_is_ended_on_the_server(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path, token_s=0.05), weights(tmp_path, 1)

    async def test() -> None:
        server = await started(stand_in, files)
        asking = asyncio.ensure_future(server.generate(request(max_tokens=57)))
        await until(lambda: stand_in.inflight == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: stand_in.inflight == 0)

    run(stand_in, test())


# --- quiet and secrets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_for_quiet_is_left_alone_for_that_long(tmp_path: Path, status: int) -> None:
    stand_in, files = StandInVllm(tmp_path), weights(tmp_path, 1)

    async def test() -> None:
        server = await started(stand_in, files)
        stand_in.fault = always(Fault(status, b"busy", {"Retry-After": "1"}), "/inference/v1/generate")
        loop, begin = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        with pytest.raises(BackendUnavailable, match=f"with status {status}: busy"):
            await server.generate(request())
        with pytest.raises(BackendUnavailable, match="wants to be left alone for"):
            await server.health()
        stand_in.fault = lambda path, body: None
        asked = stand_in.calls["/inference/v1/generate"]
        waiting = asyncio.ensure_future(server.generate(request()))
        await asyncio.sleep(0.2)
        assert stand_in.calls["/inference/v1/generate"] == asked
        assert (await waiting).fault() is None
        assert loop.time() - begin >= 0.95
        assert (await server.health()).version == START

    run(stand_in, test())


def test_nothing_of_a_run_shows_the_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "sk-3f9a77"
    stand_in, files = StandInVllm(tmp_path, key=secret), weights(tmp_path, 1)
    said = []

    async def test() -> None:
        server = await started(stand_in, files, key=ApiKey(secret))
        assert (await server.generate(request())).fault() is None
        for fault in (
            Fault(500, f"key {secret}".encode()),
            Fault(403, secret.encode()),
            Fault(breaks_off=True),
        ):
            stand_in.fault = always(fault, "/inference/v1/generate")
            with pytest.raises(BackendError) as caught:
                await server.generate(request())
            said.append(str(caught.value))
        said.extend([repr(server), repr(vars(server)), repr(vars(server._client))])
        await stand_in.stop()
        await server.close()

    run(stand_in, test())
    assert secret not in caplog.text + "".join(said)
    assert "***" in said[0]


@each_server
def test_a_server_that_is_killed_in_the_middle_of_an_answer_is_known_to_be_gone_at_once(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    """One that cuts a connection and lives is not, and gets other requests."""
    stand_in, files = kind(tmp_path, token_s=0.01), weights(tmp_path, 1, what)

    async def test() -> None:
        server = await started(stand_in, files)
        told = asyncio.Event()
        asking = asyncio.ensure_future(server.generate(request(max_tokens=57), lambda chunk: told.set()))
        await told.wait()
        await stand_in.stop()
        with pytest.raises(WorkerDied, match=r"has ended in the middle of an answer: .* broke off") as caught:
            await asking
        assert caught.value.lost_tokens > 0
        await stand_in.start()
        assert (await server.health()).version == NOT_OURS
        await server.publish(START, files)
        stand_in.fault = lambda path, body: Fault(breaks_off=True, after=1) if "generate" in path else None
        with pytest.raises(BackendUnavailable) as other:
            await server.generate(request(max_tokens=57))
        assert type(other.value) is BackendUnavailable
        await server.close()

    run(stand_in, test())


@each_server
def test_a_server_whose_engine_has_ended_is_gone_for_all_and_one_that_fails_is_not(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    stand_in, files = kind(tmp_path), weights(tmp_path, 1, what)

    async def test() -> None:
        server = await started(stand_in, files)
        stand_in.fault = lambda path, body: Fault(500, b"{}") if "generate" in path else None
        with pytest.raises(BackendUnavailable) as caught:
            await server.generate(request())
        assert type(caught.value) is BackendUnavailable
        stand_in.engine_has_ended = True
        with pytest.raises(WorkerDied, match=r"has ended in the middle of an answer: .* with status 500"):
            await server.generate(request())
        await server.close()

    run(stand_in, test())


def test_a_closed_server_is_left_in_peace(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path, token_s=0.01), weights(tmp_path, 1)

    async def test() -> None:
        server = await started(stand_in, files)
        asking = asyncio.ensure_future(server.generate(request(max_tokens=57)))
        await until(lambda: stand_in.inflight == 1)
        await server.close()
        await server.close()
        assert (await asking).finish_reason is FinishReason.ABORT
        for call in (server.generate(request()), server.health(), server.start()):
            with pytest.raises(BackendUnavailable, match="is closed"):
                await call
        assert stand_in.inflight == 0

    run(stand_in, test())
