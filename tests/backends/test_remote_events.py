"""Server-sent events: what is an event, however the bytes of it arrive, and what is too much."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swift_rlx.backends.remote_answer import NoAnswer
from swift_rlx.backends.remote_events import EventReader

STREAMS = {
    "plain": (b'data: {"a": 1}\n\ndata: [DONE]\n\n', [b'{"a": 1}', b"[DONE]"]),
    "carriage returns": (b"data: 1\r\n\r\ndata: 2\r\n\r\n", [b"1", b"2"]),
    "several lines": (b"data: 1\ndata: 2\n\n", [b"1\n2"]),
    "without a space": (b"data:1\n\n", [b"1"]),
    "one space of two": (b"data:  1\n\n", [b" 1"]),
    "comments and other fields": (b": ping\n\nevent: x\nid: 7\nretry: 9\ndata: 1\n\n", [b"1"]),
    "an event without data": (b"event: x\n\ndata: 1\n\n", [b"1"]),
    "data that is empty": (b"data\n\ndata:\n\n", [b"", b""]),
    "no end": (b"data: 1\n\ndata: 2\n", [b"1"]),
    "torn": (b"data: 1\n\ndata: 2", [b"1"]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize(("stream", "events"), STREAMS.values(), ids=STREAMS)
def test_events_are_the_same_however_their_bytes_arrive(stream: bytes, events: list[bytes]) -> None:
    for size in (1, 2, 3, 7, len(stream) + 1):
        reader = EventReader(1000)
        parts = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [event for part in parts for event in reader.feed(part)] == events, size


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_any_bytes_give_the_same_events_in_one_part_and_in_many(stream: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(stream)]
    reader = EventReader(1000)
    found = [one for a, b in itertools.pairwise(places) for one in reader.feed(stream[a:b])]
    assert found == EventReader(1000).feed(stream)


@pytest.mark.parametrize("part", [b"data: " + b"x" * 50, b": ping\n" * 9, b"data: 1\n" * 8, b"\n" * 60])
def test_what_never_ends_is_no_event(part: bytes) -> None:
    reader = EventReader(100)
    assert not reader.feed(part)
    with pytest.raises(NoAnswer, match="an event of more than the 100 bytes that one can have"):
        reader.feed(part)


def test_the_bytes_of_each_event_count_for_themselves() -> None:
    reader = EventReader(20)
    assert [len(reader.feed(b"data: 12345678\n\n")) for _ in range(50)] == [1] * 50
