"""An answer that comes event by event. What has come is checked before anybody is told of it.

event --> WirePiece --StreamedAnswer.take--> Chunk, to tell of
                    --StreamedAnswer.whole-> WireAnswer, when the answer has ended
"""

from __future__ import annotations

import numpy as np

from swift_rlx.backends.remote_answer import (
    Expected,
    NoAnswer,
    Span,
    WireAnswer,
    WirePiece,
    check_label,
    check_tokens,
)
from swift_rlx.types import Chunk, FinishReason, PolicyVersion

SPARE_EVENTS = 16
"""An answer may have so many more events than tokens."""


class StreamedAnswer:
    """`first_place`: of its first token, behind those that earlier attempts made; `start_s`: when it was asked for."""

    def __init__(self, expected: Expected, first_place: int = 0, start_s: float = 0.0) -> None:
        self.first_token_s: float | None = None
        self._expected = expected
        self._first_place = first_place
        self._start_s = start_s
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._finish_reason: FinishReason | None = None
        self._spans: list[Span] | None = None
        self._label: str | None = None
        self._events = 0
        self._live = expected.served
        self._is_torn = False

    @property
    def num_tokens(self) -> int:
        """That have come."""
        return len(self._token_ids)

    @property
    def has_ended(self) -> bool:
        """Whether its last piece has come."""
        return self._finish_reason is not None

    def take(self, piece: WirePiece, live: PolicyVersion, now_s: float) -> Chunk | None:
        """Take a piece, and say what is to be told of it: nothing of the last one. `live`: make tokens by now.

        Servers gather tokens for an event, so some of one may be from before these weights came to live. Which they are
        is said at the end of the answer; until then nothing more is told.

        Raises `NoAnswer` for a piece that does not follow the others, and as `completion` does for its tokens.
        """
        self._events += 1
        if self.has_ended or self._events > self._expected.max_tokens + SPARE_EVENTS:
            raise NoAnswer("it went on behind the end of an answer")
        begin = len(self._token_ids)
        new = slice(self._repeated(piece), None)
        token_ids, logprobs = piece.token_ids[new], piece.logprobs[new]
        check_tokens(token_ids, logprobs, self._expected, begin)
        check_label(piece.label, self._expected)
        self._token_ids += token_ids
        self._logprobs += logprobs
        self._finish_reason, self._label = piece.finish_reason, piece.label
        self._spans = None if piece.spans is None else list(piece.spans)
        if token_ids and self.first_token_s is None:
            self.first_token_s = now_s
        made_by, before = (self._expected.served if self._expected.is_pinned else live), self._live
        self._live = made_by
        self._is_torn |= made_by != before and len(token_ids) > 1
        if self.has_ended or self._is_torn or not token_ids:
            return None
        return Chunk(
            self._first_place + begin,
            np.array(token_ids, np.int32),
            np.array(logprobs, np.float32),
            np.full(len(token_ids), made_by.step, np.int32),
            made_by.incarnation,
            self._start_s,
            now_s if self.first_token_s is None else self.first_token_s,
        )

    def whole(self) -> WireAnswer:
        """All of it. Raises `NoAnswer` where its last piece has not come."""
        if self._finish_reason is None:
            raise NoAnswer(f"its stream broke off behind {len(self._token_ids)} tokens")
        return WireAnswer(self._token_ids, self._logprobs, self._finish_reason, self._spans, self._label)

    def _repeated(self, piece: WirePiece) -> int:
        """How many of its tokens had come before."""
        begin, count = len(self._token_ids), len(piece.token_ids)
        if piece.so_far is None or (begin + count == piece.so_far != count):
            return 0
        same = piece.token_ids[:begin] == self._token_ids and piece.logprobs[:begin] == self._logprobs
        if count < begin or not same:
            raise NoAnswer(f"it repeated the first {begin} tokens of an answer otherwise than they were")
        return begin
