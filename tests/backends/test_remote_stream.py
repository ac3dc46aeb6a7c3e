"""An answer that comes event by event: what is told of it, and which pieces do not follow one another."""

from __future__ import annotations

from typing import Any

import pytest

from swift_rlx.backends.remote_answer import Expected, Labels, NoAnswer, Span, WirePiece
from swift_rlx.backends.remote_stream import SPARE_EVENTS, StreamedAnswer
from swift_rlx.errors import BackendRejected, BackendUnavailable, WeightsLost
from swift_rlx.types import FinishReason, PolicyVersion

LABELS, SERVED, NEXT = Labels("cafe"), PolicyVersion(2, 7), PolicyVersion(2, 8)


def stream(first_place: int = 0, **changes: Any) -> StreamedAnswer:
    given = {"labels": LABELS, "served": SERVED, "is_pinned": False, "max_tokens": 8, "vocabulary": 16}
    return StreamedAnswer(Expected(url="http://a:1", **(given | changes)), first_place, 1.0)


def piece(*ids: int, **changes: Any) -> WirePiece:
    return WirePiece(list(ids), [-0.1 * one for one in ids], **changes)


def test_pieces_are_told_with_their_place_version_and_times_and_the_last_is_not() -> None:
    one = stream(first_place=3)
    first, second = one.take(piece(4, 5), SERVED, 2.0), one.take(piece(6), SERVED, 3.0)
    spans = [Span("rlx-cafe-2.7", 0, 2), Span("rlx-cafe-2.8", 2, 4)]
    assert one.take(piece(7, finish_reason=FinishReason.STOP, spans=spans), NEXT, 4.0) is None
    assert (first.begin, first.token_ids.tolist(), first.policy_steps.tolist()) == (3, [4, 5], [7, 7])
    assert (second.begin, second.token_ids.tolist(), second.policy_steps.tolist()) == (5, [6], [7])
    assert {(told.incarnation, told.start_s, told.first_token_s) for told in (first, second)} == {
        (2, 1.0, 2.0)
    }
    whole = one.whole()
    assert (whole.token_ids, whole.finish_reason, whole.spans) == ([4, 5, 6, 7], FinishReason.STOP, spans)
    assert one.first_token_s == 2.0


def test_an_answer_that_is_pinned_is_of_its_version_whatever_goes_live_meanwhile() -> None:
    one = stream(is_pinned=True)
    told = [one.take(piece(4), NEXT, 2.0) for _ in range(3)]
    assert [chunk.policy_steps.tolist() for chunk in told] == [[7]] * 3


def test_of_an_event_that_may_be_of_two_weights_and_what_follows_nothing_is_told() -> None:
    one = stream()
    told = [one.take(piece(4, 5), live, 2.0) for live in (SERVED, NEXT, NEXT)]
    assert [chunk and chunk.policy_steps.tolist() for chunk in told] == [[7, 7], None, None]
    assert one.num_tokens == 6


def test_an_event_of_one_token_is_of_the_weights_that_are_live() -> None:
    one = stream()
    told = [one.take(piece(*ids), live, 2.0) for ids, live in (((4,), NEXT), ((5, 6), NEXT), ((7,), SERVED))]
    assert [chunk.policy_steps.tolist() for chunk in told] == [[8], [8, 8], [7]]


def test_what_a_server_repeats_is_told_once() -> None:
    one = stream()
    told = [one.take(piece(*range(end), so_far=end), SERVED, 2.0) for end in (1, 3, 3)]
    assert [None if chunk is None else chunk.token_ids.tolist() for chunk in told] == [[0], [1, 2], None]
    assert one.take(piece(0, 1, 2, 3, so_far=4, finish_reason=FinishReason.LENGTH), SERVED, 3.0) is None
    assert one.whole().token_ids == [0, 1, 2, 3]


def test_a_server_that_counts_and_does_not_repeat_is_understood_too() -> None:
    one = stream()
    told = [
        one.take(piece(*ids, so_far=end), SERVED, 2.0) for ids, end in (((1,), 1), ((1, 2), 3), ((3,), 4))
    ]
    assert [chunk.token_ids.tolist() for chunk in told] == [[1], [1, 2], [3]]


END = {"finish_reason": FinishReason.STOP, "spans": [Span(LABELS.of(SERVED), 0, 1)]}
WRONG = [
    ("repeats less", [piece(1, 2, so_far=2), piece(1, so_far=2)], NoAnswer, "repeated the first 2 tokens"),
    ("repeats others", [piece(1, so_far=1), piece(2, 1, so_far=2)], NoAnswer, "repeated the first 1 tokens"),
    ("goes on", [piece(1, **END), piece(2)], NoAnswer, "went on behind the end"),
    ("ends twice", [piece(1, **END), piece(**END)], NoAnswer, "went on behind the end"),
    ("says nothing for ever", [piece()] * (SPARE_EVENTS + 9), NoAnswer, "went on behind the end"),
    ("too many", [piece(1, 2, 3, 4), piece(5, 6, 7, 8, 9)], BackendUnavailable, "gave 9 tokens, where 8 were"),
    ("foreign", [piece(1), piece(16)], BackendUnavailable, "token ids from 16 to 16"),
    ("no log-prob", [piece(1), WirePiece([2], [])], BackendRejected, "0 log-probs for 1 tokens"),
    ("nan", [WirePiece([2], [float("nan")])], BackendRejected, "log-probs that are none, such as nan"),
    ("other weights", [piece(1, label="rlx-cafe-2.8")], WeightsLost, "answered with weights 2.8, and 2.7 is what"),
    ("its own weights", [piece(1, label="default")], WeightsLost, "did not publish"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pieces", "error", "words"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG]
)
def test_a_piece_that_cannot_be_is_refused_before_it_is_told(
    pieces: list[WirePiece], error: type[Exception], words: str
) -> None:
    one = stream()
    for each in pieces[:-1]:
        one.take(each, SERVED, 2.0)
    with pytest.raises(error, match=words):
        one.take(pieces[-1], SERVED, 2.0)


def test_an_answer_whose_last_piece_has_not_come_is_none() -> None:
    one = stream()
    one.take(piece(1, 2), SERVED, 2.0)
    assert not one.has_ended
    with pytest.raises(NoAnswer, match="its stream broke off behind 2 tokens"):
        one.whole()
