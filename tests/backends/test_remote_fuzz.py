"""Whatever bytes a server sends, the trainer gets a sound record or one of the errors that it expects; nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from damaged_answers import (
    LABELS,
    SERVED,
    TEXT,
    Answer,
    answers,
    damaged,
    damaged_stream,
    events_of,
    of_sglang,
    of_vllm,
    others,
    written,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swift_rlx.backends.progress import Draft
from swift_rlx.backends.remote_answer import (
    EventFault,
    Expected,
    NoAnswer,
    Times,
    completion,
    decode,
)
from swift_rlx.backends.remote_dialect import Dialect
from swift_rlx.backends.remote_endpoint import ApiKey, parse_endpoints
from swift_rlx.backends.remote_events import END, EventReader
from swift_rlx.backends.remote_http import Call, HttpClient, Reply
from swift_rlx.backends.remote_sglang import SglangDialect
from swift_rlx.backends.remote_stream import StreamedAnswer
from swift_rlx.backends.remote_vllm import VllmDialect
from swift_rlx.errors import BackendError, BackendRejected, BackendUnavailable, WeightsLost

SECRET = "sk-3f9a77"
MOST_BYTES = 1 << 16
DIALECTS: list[Dialect] = [VllmDialect(), SglangDialect()]


def fuzz(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


seen: Counter[type[Exception]] = Counter()
"""Errors so far."""


def expected(is_pinned: bool) -> Expected:
    return Expected("http://a:1", LABELS, SERVED, is_pinned, max_tokens=6, vocabulary=16)


def follow(dialect: Dialect, stream: bytes, size: int, is_pinned: bool = False) -> int:
    """Read a stream that arrives in parts of this size, as a request does; whether it gave a sound record.

    What is told before its end is sound whatever comes behind.
    """
    one, reader, draft = StreamedAnswer(expected(is_pinned)), EventReader(MOST_BYTES), Draft()
    try:
        for at in range(0, len(stream), size):
            for data in reader.feed(stream[at : at + size]):
                if data != END and (chunk := one.take(dialect.piece(data), SERVED, 1.0)) is not None:
                    assert chunk.begin == draft.end
                    assert np.all(chunk.policy_steps == SERVED.step)
                    draft.add(chunk)
        record = completion(one.whole(), expected(is_pinned), Times(0.0, 0.0, one.first_token_s, 1.0))
    except (NoAnswer, BackendError, EventFault) as error:
        seen[type(error)] += 1
        record = None
    if (told := draft.whole()) is not None:
        assert told.num_tokens <= 6
        assert 0 <= told.token_ids.min() <= told.token_ids.max() < 16
        assert np.all((told.logprobs <= 1e-2) & (told.logprobs > -9999))
        if record is not None:
            assert record.token_ids[: told.num_tokens].tolist() == told.token_ids.tolist()
    if record is None:
        return 0
    assert record.fault() is None or record.num_tokens == 0
    assert record.token_ids.min(initial=0) >= 0
    assert record.token_ids.max(initial=0) < 16
    assert np.all(record.policy_steps >= SERVED.step)
    assert np.all(record.logprobs <= 1e-2)
    return 1


def take(body: bytes, is_pinned: bool = False) -> int:
    """Read the body in every way that there is; the number of sound records."""
    event, sound = b"data: " + body + b"\n\n", 0
    for dialect in DIALECTS:
        sound += follow(dialect, event, len(event), is_pinned)
        if isinstance(dialect, SglangDialect):
            with contextlib.suppress(NoAnswer):
                assert dialect.text_scores(body, TEXT).shape == (3,)
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


def take_variants(answer: Answer, other: bytes, number: int) -> int:
    chance = random.Random(number)
    right = [of_vllm(answer), of_sglang(answer)]
    bodies = [other, *(damaged(right[at % 2], chance) for at in range(VARIANTS - 1))]
    return sum(take(body, chance.random() < 0.5) for body in bodies)


def follow_variants(answer: Answer, other: bytes, number: int) -> int:
    chance = random.Random(number)
    right = [events_of(answer, of) for of in (of_vllm, of_sglang)]
    sound = sum(follow(dialect, other, 7) for dialect in DIALECTS)
    for at in range(VARIANTS - 1):
        stream = damaged_stream(right[at % 2], chance)
        size = chance.choice([1, 5, 64, len(stream) + 1])
        sound += follow(DIALECTS[at % 2], stream, size, chance.random() < 0.5)
    return sound


@fuzz(2_000 // VARIANTS)
@given(answers, others, st.integers(0, 2**32))
def test_no_body_gives_anything_but_a_record_or_an_error_of_ours(
    answer: Answer, other: bytes, number: int
) -> None:
    take_variants(answer, other, number)


@pytest.mark.slow
@fuzz(100_000 // VARIANTS)
@given(answers, others, st.integers(0, 2**32))
def test_nor_do_a_hundred_thousand(answer: Answer, other: bytes, number: int) -> None:
    take_variants(answer, other, number)


@fuzz(1_000 // VARIANTS)
@given(answers, others, st.integers(0, 2**32))
def test_no_stream_gives_anything_but_a_record_or_an_error_of_ours(
    answer: Answer, other: bytes, number: int
) -> None:
    follow_variants(answer, other, number)


@pytest.mark.slow
@fuzz(100_000 // VARIANTS)
@given(answers, others, st.integers(0, 2**32))
def test_nor_do_a_hundred_thousand_streams(answer: Answer, other: bytes, number: int) -> None:
    follow_variants(answer, other, number)


def test_the_inputs_reach_records_and_every_error() -> None:
    """Otherwise the above would only show that garbage is garbage."""
    answer = [(3, -1.0), (4, -0.5)]
    assert [take(written(of(answer))) for of in (of_vllm, of_sglang)] == [1, 1]
    sound = sum(take_variants(answer, b"", number) for number in range(10))
    assert VARIANTS < sound < 9 * VARIANTS
    sound = sum(follow_variants(answer, b"", number) for number in range(10))
    assert VARIANTS < sound < 9 * VARIANTS
    assert {BackendRejected, BackendUnavailable, WeightsLost, NoAnswer, EventFault} <= {*seen}


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
