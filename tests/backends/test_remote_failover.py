"""What a server has told of an answer is kept when it fails, and another one goes on behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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

from swift_rlx.backends import GenerationRequest, WeightKind
from swift_rlx.backends.answer_prefix import seed_behind
from swift_rlx.backends.progress import Draft, sampled_part, shared_tokens
from swift_rlx.backends.remote_dialect import STREAM_TOKENS
from swift_rlx.backends.remote_server import RemoteServer
from swift_rlx.errors import BackendError, BackendRejected, BackendUnavailable
from swift_rlx.types import Chunk, Completion, FinishReason, PolicyVersion

GENERATE = ("/inference/v1/generate", "/generate")
MOST = 50
BROKEN = {
    "the connection breaks": Fault(breaks_off=True, after=2),
    "garbage": Fault(body=b"data: \x00\xff{[\n\n", after=2),
    "another record": Fault(body=b'data: {"choices": 7, "meta_info": 7}\n\n', after=2),
    "half an event": Fault(body=b'data: {"choi', breaks_off=True, after=2),
    "the stream ends": Fault(after=2),
    "it ends before the answer": Fault(body=b"data: [DONE]\n\n", after=2),
    "an error of the engine": Fault(
        body=b'data: {"error": {"message": "CUDA error", "code": 500}}\n\ndata: [DONE]\n\n', after=2
    ),
}


async def told_of(
    server: RemoteServer, one: GenerationRequest
) -> tuple[Chunk | None, Completion | BackendError]:
    """What was told of an answer, and how it ended."""
    draft = Draft()
    try:
        answer: Completion | BackendError = await server.generate(one, draft.add)
    except BackendError as error:
        answer = error
    return draft.whole(), answer


@pytest.mark.parametrize("fault", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize(("kind", "what"), [(StandInVllm, FULL), (StandInSglang, ADAPTER)])
def test_what_came_before_a_server_failed_was_told_and_is_sound(
    kind: type[StandIn], what: WeightKind, fault: Fault, tmp_path: Path
) -> None:
    stand_in, files = kind(tmp_path), weights(tmp_path, 1, what)

    async def test() -> tuple[Completion | BackendError, Chunk | None, Completion | BackendError]:
        server = await started(stand_in, files)
        whole = await server.generate(request(seed=3, max_tokens=MOST))
        stand_in.fault = always(fault, *GENERATE)
        told, answer = await told_of(server, request(seed=3, max_tokens=MOST))
        await server.close()
        return whole, told, answer

    whole, told, error = run(stand_in, test())
    assert isinstance(error, BackendUnavailable), "so that another server is asked"
    assert error.lost_tokens == 1 + STREAM_TOKENS, "of which those that were told are kept"
    assert told is not None
    assert told.num_tokens == 1 + STREAM_TOKENS
    assert told.token_ids.tolist() == whole.token_ids[: told.num_tokens].tolist()
    assert np.allclose(told.logprobs, whole.logprobs[: told.num_tokens])
    assert set(told.policy_steps.tolist()) == {START.step}


@each_server
def test_another_server_goes_on_behind_what_was_told(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    first, second = (kind(tmp_path / name) for name in "ab")
    files = weights(tmp_path, 1, what)

    async def test() -> tuple[Completion, Chunk, Completion]:
        one, other = await started(first, files), await started(second, files)
        asked = request(1, 2, temperature=0.0, seed=5, max_tokens=MOST)
        whole = await one.generate(asked)
        first.fault = always(BROKEN["the connection breaks"], *GENERATE)
        told, _ = await told_of(one, replace(asked, request_id="again"))
        assert told is not None
        marked = replace(told, logprobs=told.logprobs - np.float32(0.25))
        answer = await other.generate(replace(asked, prefix=marked))
        for server in (one, other):
            await server.close()
        return whole, marked, answer

    whole, prefix, answer = run([first, second], test())
    kept = prefix.num_tokens
    assert answer.token_ids.tolist() == whole.token_ids.tolist()
    assert answer.logprobs[:kept].tolist() == prefix.logprobs.tolist(), "the prefix stays as it was told"
    assert np.allclose(answer.logprobs[kept:], whole.logprobs[kept:], atol=1e-5)
    assert answer.finish_reason is whole.finish_reason
    assert answer.policy_steps.tolist() == whole.policy_steps.tolist()
    sent = [body for path, body in second.bodies if path in GENERATE and body.get("stream")][-1]
    given = sent["sampling_params"]
    assert sent.get("token_ids", sent.get("input_ids")) == [1, 2, *prefix.token_ids.tolist()]
    assert given.get("max_tokens", given.get("max_new_tokens")) == MOST - kept
    assert given.get("seed", given.get("sampling_seed")) == seed_behind(5, kept) != 5


@pytest.mark.parametrize(
    ("sampling", "decode", "kept"),
    [
        ({}, None, 3),
        ({"stop": ("7",)}, None, 0),
        ({"stop": ("7",)}, lambda ids: "".join(map(str, ids)), 3),
        ({"stop": ("47",)}, lambda ids: "".join(map(str, ids)), 2),
        ({"max_tokens": 3}, None, 0),
    ],
    ids=["plain", "stop strings", "with texts", "one has begun", "no room"],
)  # fmt: skip
def test_a_server_that_cannot_go_on_begins_anew(
    sampling: dict[str, Any], decode: Callable[[list[int]], str] | None, kept: int, tmp_path: Path
) -> None:
    stand_in, files = StandInVllm(tmp_path), weights(tmp_path, 1)
    prefix = Chunk(0, np.int32([2, 3, 4]), np.float32([-1, -1, -1]), np.int32([0, 0, 0]))

    async def test() -> None:
        server = await started(stand_in, files, decode=decode)
        answer = await server.generate(replace(request(9, **sampling), prefix=prefix))
        assert answer.logprobs.tolist()[:kept] == [-1.0] * kept
        assert answer.num_tokens == sampling.get("max_tokens", 8)
        await server.close()

    run(stand_in, test())
    sent = [body for path, body in stand_in.bodies if path == GENERATE[0] and body.get("stream")][-1]
    assert sent["token_ids"] == [9, 2, 3, 4][: 1 + kept]


def test_where_the_penalty_of_a_server_does_not_see_the_prompt_it_begins_anew(tmp_path: Path) -> None:
    stand_in, files = StandInSglang(tmp_path), weights(tmp_path, 1)
    prefix = Chunk(0, np.int32([2, 3]), np.float32([-1, -1]), np.int32([0, 0]))

    async def test() -> None:
        server = await started(stand_in, files)
        for penalty in (1.0, 1.1):
            await server.generate(replace(request(9, repetition_penalty=penalty), prefix=prefix))
        await server.close()

    run(stand_in, test())
    sent = [body["input_ids"] for path, body in stand_in.bodies if path == "/generate" and body.get("stream")]
    assert sent == [[9, 2, 3], [9]]


def test_a_server_of_sglang_that_does_not_repeat_what_came_before_is_understood(tmp_path: Path) -> None:
    stand_in, files = StandInSglang(tmp_path, is_incremental=True), weights(tmp_path, 1)

    async def test() -> None:
        server = await started(stand_in, files)
        told, answer = await told_of(server, request(max_tokens=MOST))
        assert isinstance(answer, Completion)
        assert answer.num_tokens == MOST
        assert told is not None
        assert told.token_ids.tolist() == answer.token_ids[: told.num_tokens].tolist()
        await server.close()

    run(stand_in, test())


@pytest.mark.parametrize(
    ("kind", "what"), [SERVERS[0], SERVERS[1], SERVERS[3]]
)  # the other is drained before
def test_what_came_of_certain_weights_is_told_while_new_ones_are_published(
    kind: type[StandIn], what: WeightKind, tmp_path: Path
) -> None:
    stand_in, files = kind(tmp_path, token_s=0.01), [weights(tmp_path, seed, what) for seed in (1, 2)]

    async def test() -> None:
        server = RemoteServer(stand_in.endpoint, needs(what, keeps=what is FULL))
        await server.start()
        await server.publish(START, files[0])
        drafts = [Draft() for _ in range(6)]
        asking = [
            asyncio.ensure_future(server.generate(request(seed=seed, max_tokens=57), draft.add))
            for seed, draft in enumerate(drafts)
        ]
        await until(lambda: all(draft.num_tokens >= 17 for draft in drafts))
        await server.publish(PolicyVersion(0, 1), files[1])
        for draft, answer in zip(drafts, await asyncio.gather(*asking), strict=True):
            told = draft.whole()
            assert told is not None
            assert shared_tokens(told, sampled_part(answer)) == told.num_tokens, "versions among them"
            assert {*answer.policy_steps.tolist()} == ({0, 1} if what is FULL else {0})
            if what is FULL:
                assert told.num_tokens <= answer.policy_steps.tolist().index(1)
        await server.close()

    run(stand_in, test())


def test_tokens_that_came_and_were_not_told_are_lost_with_the_server(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path), weights(tmp_path, 1)

    async def test() -> BackendError:
        server, draft = await started(stand_in, files), Draft()

        def told(chunk: Chunk) -> None:
            draft.add(chunk)
            server.weights.live = PolicyVersion(0, 1)  # somewhere in the event that follows

        stand_in.fault = always(BROKEN["the connection breaks"], *GENERATE)
        with pytest.raises(BackendUnavailable) as caught:
            await server.generate(request(max_tokens=MOST), told)
        await server.close()
        assert draft.num_tokens == 1
        return caught.value

    assert run(stand_in, test()).lost_tokens == 1 + STREAM_TOKENS


def test_what_a_server_refuses_in_its_stream_is_refused_as_it_would_be_without_one(tmp_path: Path) -> None:
    for stand_in, files in (
        (StandInVllm(tmp_path / "a"), weights(tmp_path, 1)),
        (StandInSglang(tmp_path / "b"), weights(tmp_path, 1)),
    ):

        async def test(stand_in: StandIn = stand_in, files: Any = files) -> None:
            server = await started(stand_in, files)
            with pytest.raises(BackendRejected, match=r"with status 400: token ids \[99\] are refused"):
                await server.generate(request(99))
            assert (await server.generate(request())).fault() is None
            await server.close()

        run(stand_in, test())


def test_an_answer_in_one_piece_is_none(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path), weights(tmp_path, 1)

    async def test() -> None:
        server = await started(stand_in, files)
        whole = Fault(body=b'{"choices": []}', headers={"Content-Type": "application/json"})
        stand_in.fault = always(whole, *GENERATE)
        with pytest.raises(
            BackendUnavailable, match="answered with 'application/json', where 'text/event-stream'"
        ):
            await server.generate(request())
        await server.close()

    run(stand_in, test())


def test_an_answer_that_is_ended_behind_a_prefix_has_the_prefix(tmp_path: Path) -> None:
    stand_in, files = StandInVllm(tmp_path, token_s=0.02), weights(tmp_path, 1)
    prefix = Chunk(0, np.int32([2, 3]), np.float32([-1, -1]), np.int32([0, 0]))

    async def test() -> None:
        server = await started(stand_in, files)
        asking = asyncio.ensure_future(
            server.generate(replace(request(9, name="a", max_tokens=57), prefix=prefix))
        )
        await until(lambda: stand_in.inflight == 1)
        await server.abort(["a"])
        answer = await asking
        assert answer.finish_reason is FinishReason.ABORT
        assert answer.token_ids.tolist()[:2] == [2, 3]
        await server.close()

    run(stand_in, test())
