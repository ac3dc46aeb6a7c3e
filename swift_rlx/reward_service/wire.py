"""What a reward service and its clients say to each other: JSON over HTTP, decoded into typed records and nothing else.

    GET  /v1/rewards                              -> Listing
    POST /v1/score     ScoreRequest               -> ScoreReply, or Refusal with 4xx or 503
    POST /v1/workers   {"workers": 3}             -> {"workers": 3}
    GET  /health, /metrics

A service has one version of a reward. A request that names another one is refused with 409, never scored.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec

MAX_ROWS = 4096
"""Of one request."""
MAX_BODY_BYTES = 32 << 20
MAX_REASON = 500
"""Characters of a reason in a reply."""

VERSION_CHANGED = 409
TOO_MANY = 429


class Row(msgspec.Struct, frozen=True):
    """A completion and the columns of its row of the data set."""

    completion: Any
    columns: dict[str, Any] = {}


class ScoreRequest(msgspec.Struct, frozen=True):
    """`version`: the only one that may score these rows; empty: the one that is served."""

    reward: str
    rows: list[Row]
    version: str = ""


class ScoreReply(msgspec.Struct, frozen=True):
    """One score a row, None where it is unscored; `faults`: by row, why the reward failed there (its score is None)."""

    version: str
    scores: list[float | None]
    faults: dict[int, str] = {}


class Offer(msgspec.Struct, frozen=True):
    """A served reward. `required`, `optional`: columns that it reads; `takes_any`: it reads whatever there is."""

    name: str
    version: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    takes_any: bool = False


class Listing(msgspec.Struct, frozen=True):
    """What a service serves."""

    rewards: tuple[Offer, ...]


class Refusal(msgspec.Struct, frozen=True):
    """`serves`: with 409, the version that there is."""

    detail: str
    serves: str = ""


class NotAReply(ValueError):
    """Bytes that are no reply to what was asked; the message says why, and begins with a verb."""


Record = TypeVar("Record", Listing, ScoreReply, Refusal, ScoreRequest)


def decode(data: bytes, kind: type[Record]) -> Record:
    """One record. Raises `NotAReply` for anything else, whatever the bytes are."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise NotAReply(f"sent no {kind.__name__}: {str(error)[:MAX_REASON]}") from None


def decode_scores(data: bytes, num_rows: int) -> ScoreReply:
    """A reply with exactly one finite number or None a row. Raises `NotAReply`."""
    reply = decode(data, ScoreReply)
    if len(reply.scores) != num_rows:
        raise NotAReply(f"sent {len(reply.scores)} scores for {num_rows} rows")
    if not all(score is None or math.isfinite(score) for score in reply.scores):
        raise NotAReply("sent a score that is not finite")
    if not all(0 <= row < num_rows and reply.scores[row] is None for row in reply.faults):
        raise NotAReply("sent a fault for a row that it scored, or that does not exist")
    return reply
