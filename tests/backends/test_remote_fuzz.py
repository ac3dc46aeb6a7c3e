"""Whatever bytes a server sends, the trainer gets a sound record or one of the errors that it expects; nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swift_rlx.backends.remote_answer import Expected, Labels, NoAnswer, Times, completion, decode
from swift_rlx.backends.remote_dialect import Dialect
from swift_rlx.backends.remote_endpoint import ApiKey, parse_endpoints
from swift_rlx.backends.remote_http import Call, HttpClient, Reply
from swift_rlx.backends.remote_sglang import SglangDialect
from swift_rlx.backends.remote_vllm import VllmDialect
from swift_rlx.errors import BackendError, BackendRejected, BackendUnavailable, WeightsLost
from swift_rlx.types import PolicyVersion

LABELS, SERVED = Labels("cafe"), PolicyVersion(0, 3)
SECRET = "sk-3f9a77"
TEXT = np.arange(4, dtype=np.int32)
DIALECTS: list[Dialect] = [VllmDialect(), SglangDialect()]


def fuzz(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


# --- what comes: right answers, damaged in their meaning or in their bytes; any JSON; any bytes ----------------------

JUNK: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, 2**64, 10**40, 1e308, -1e308, float("nan"), float("inf"), -0.0, 0.5, "", "stop",
    "default", "abort", "\ud800", "x" * 300, [], {}, [[]], [None], {"": {}}, {"error": {"error": "x"}}, "0",
    json.loads("[" * 60 + "]" * 60),
]  # fmt: skip
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)
answers = st.lists(st.tuples(st.integers(0, 15), st.floats(-20, 0)), min_size=1, max_size=6)
deep = st.one_of(
    st.integers(1, 20_000).map(lambda depth: b"[" * depth),
    st.integers(1, 3_000).map(lambda depth: b'{"error":' * depth + b"1" + b"}" * depth),
)


def of_vllm(answer: list[tuple[int, float]]) -> dict[str, Any]:
    content = [{"token_id": token, "logprob": logprob, "top_logprobs": []} for token, logprob in answer]
    half = len(answer) // 2
    spans = [
        {"version": LABELS.of(SERVED), "start": 0, "end": half},
        {"version": LABELS.of(PolicyVersion(0, 4)), "start": half, "end": len(answer)},
    ]
    choice = {
        "token_ids": [token for token, _ in answer],
        "logprobs": {"content": content},
        "finish_reason": "stop",
        "weight_versions": spans,
    }
    prompt = [None, *({str(token): {"logprob": -1.0}} for token in TEXT[1:].tolist())]
    return {"choices": [choice], "prompt_logprobs": prompt}


def of_sglang(answer: list[tuple[int, float]]) -> dict[str, Any]:
    meta = {
        "finish_reason": {"type": "length"},
        "weight_version": LABELS.of(SERVED),
        "output_token_logprobs": [[logprob, token, None] for token, logprob in answer],
        "output_top_logprobs": [[[logprob, token, None] for token, logprob in answer]],
        "input_token_logprobs": [[-1.0, token, None] for token in TEXT.tolist()],
    }
    return {"meta_info": meta}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a tree with each of its keys."""
    for key in value.keys() if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def damaged(value: Any, chance: random.Random) -> bytes:
    """The answer as JSON, with up to two faults in its meaning and, every other time, some in its bytes."""
    value = copy.deepcopy(value)
    for _ in range(chance.randrange(3)):
        container, key = chance.choice(list(places(value)))
        kind = chance.randrange(4)
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        else:
            container[key] = copy.deepcopy(chance.choice(JUNK))
        if not value:
            return b"{}"
    body = bytearray(written(value))
    for _ in range(chance.choice([0, 0, 0, 1, 2, 8])):
        start = chance.randrange(len(body) + 1)
        body[start : start + chance.randrange(6)] = chance.choice(
            [b"", chance.randbytes(3), b'"', b"}", b"9" * 30]
        )
    return bytes(body)


def written(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


seen: Counter[type[Exception]] = Counter()
"""Errors so far."""


def take(body: bytes, is_pinned: bool = False) -> int:
    """Read the body in every way that there is; the number of sound records."""
    expected = Expected("http://a:1", LABELS, SERVED, is_pinned, max_tokens=6, vocabulary=16)
    sound = 0
    for dialect in DIALECTS:
        try:
            record = completion(dialect.answer(body), expected, Times(0.0, 0.0, 1.0))
        except (NoAnswer, BackendError) as error:
            seen[type(error)] += 1
        else:
            assert record.fault() is None or record.num_tokens == 0
            assert record.token_ids.min(initial=0) >= 0
            assert record.token_ids.max(initial=0) < 16
            assert np.all(record.policy_steps >= SERVED.step)
            assert np.all(record.logprobs <= 1e-2)
            sound += 1
        with contextlib.suppress(NoAnswer):
            scores = dialect.scores(body, TEXT)
            assert scores.shape == (3,)
        with contextlib.suppress(NoAnswer):
            assert dialect.tops(body)
    with contextlib.suppress(NoAnswer):
        decode(body, dict[str, int])
    words = HttpClient(parse_endpoints(["http://a:1"])[0], ApiKey(SECRET)).words(Reply(500, body))
    assert len(words) <= 600
    assert words.isprintable()
    assert SECRET not in words
    return sound


VARIANTS = 50
"""Inputs that are made of one drawn by hypothesis; it shrinks the number that they follow from."""


def take_variants(answer: list[tuple[int, float]], other: bytes, number: int) -> int:
    chance = random.Random(number)
    right = [of_vllm(answer), of_sglang(answer)]
    bodies = [other, *(damaged(right[at % 2], chance) for at in range(VARIANTS - 1))]
    return sum(take(body, chance.random() < 0.5) for body in bodies)


others = st.one_of(st.binary(max_size=64), anything.map(written), deep)


@fuzz(2_000 // VARIANTS)
@given(answers, others, st.integers(0, 2**32))
def test_no_body_gives_anything_but_a_record_or_an_error_of_ours(
    answer: list[tuple[int, float]], other: bytes, number: int
) -> None:
    take_variants(answer, other, number)


@pytest.mark.slow
@fuzz(100_000 // VARIANTS)
@given(answers, others, st.integers(0, 2**32))
def test_nor_do_a_hundred_thousand(answer: list[tuple[int, float]], other: bytes, number: int) -> None:
    take_variants(answer, other, number)


def test_the_inputs_reach_records_and_every_error() -> None:
    """Otherwise the above would only show that garbage is garbage."""
    answer = [(3, -1.0), (4, -0.5)]
    assert [take(written(of(answer))) for of in (of_vllm, of_sglang)] == [1, 1]
    sound = sum(take_variants(answer, b"", number) for number in range(10))
    assert VARIANTS < sound < 9 * VARIANTS
    assert {BackendRejected, BackendUnavailable, WeightsLost, NoAnswer} <= {*seen}


# --- below JSON: what is no HTTP -------------------------------------------------------------------------------------

starts = st.sampled_from(
    [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 500 x\r\n", b"HTTP/1.0 200\r\n", b"HTTP/9 200 OK\r\n", b""]
)
headers = st.sampled_from(
    [b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n",
     b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: gzip\r\n", b"Retry-After: 9e9\r\n",
     b"Set-Cookie: a=\xff\r\n", b"Location: http://\xff/\r\n", b"X: " + b"y" * 20_000 + b"\r\n",
     b"no header\r\n", b"\x00: \x00\r\n"]
)  # fmt: skip
raw_replies = st.one_of(
    st.binary(max_size=80),
    st.tuples(
        starts, st.lists(headers, max_size=3).map(b"".join), st.just(b"\r\n"), st.binary(max_size=40)
    ).map(b"".join),
    st.tuples(starts, st.just(b"Transfer-Encoding: chunked\r\n\r\n"), st.binary(max_size=40)).map(b"".join),
    st.just(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
)


class RawServer:
    """Says what it is told to every caller, and hangs up."""

    def __init__(self) -> None:
        self.reply = b""
        self.loop = asyncio.new_event_loop()
        self._server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        port = self._server.sockets[0].getsockname()[1]
        self._client = HttpClient(parse_endpoints([f"http://127.0.0.1:{port}"])[0], ApiKey(SECRET))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.reply)
        writer.close()

    def outcome(self, reply: bytes) -> Reply | BackendError:
        """What the client makes of it."""
        self.reply = reply
        call = Call("POST", "/generate", {"x": 1}, max_bytes=1000)

        async def ask() -> Reply | BackendError:
            try:
                return await self._client.ask(call)
            except BackendError as error:
                return error

        return self.loop.run_until_complete(asyncio.wait_for(ask(), 20))

    def close(self) -> None:
        """End both sides."""
        self.loop.run_until_complete(self._client.close())
        self._server.close()
        self.loop.run_until_complete(self._server.wait_closed())
        self.loop.close()


@pytest.fixture
def raw_server() -> Iterator[RawServer]:
    server = RawServer()
    yield server
    server.close()


def check_raw(server: RawServer, reply: bytes) -> None:
    found = server.outcome(reply)
    if isinstance(found, Reply):
        assert 100 <= found.status < 1000
        assert len(found.body) <= 1000
    else:
        assert SECRET not in str(found)


@fuzz(200)
@given(reply=raw_replies)
def test_no_reply_that_is_no_http_gives_anything_else(raw_server: RawServer, reply: bytes) -> None:
    check_raw(raw_server, reply)


@pytest.mark.slow
@fuzz(10_000)
@given(reply=raw_replies)
def test_nor_do_ten_thousand(raw_server: RawServer, reply: bytes) -> None:
    check_raw(raw_server, reply)


def test_a_reply_that_is_http_comes_through(raw_server: RawServer) -> None:
    assert raw_server.outcome(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") == Reply(200, b"{}")
