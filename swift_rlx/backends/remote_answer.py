"""From the bytes that a server sent to a record that can be trained on, or an error; nothing in between.

What a server says is read into typed structs by msgspec, and then checked: one log-prob for each token, token ids of
the vocabulary, finite numbers, and weights that are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import numpy as np

from swift_rlx.backends.progress import joined
from swift_rlx.errors import BackendRejected, BackendUnavailable, WeightsLost
from swift_rlx.types import Chunk, Completion, FinishReason, FloatArray, IntArray, PolicyVersion

Kind = TypeVar("Kind")
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]

NO_LOGPROB = -9999.0
"""What servers send for a log-prob that is not a finite number; a real one is never that low."""
ROUNDING = 1e-3
"""Nats by which a log-prob may lie above 0."""


class NoAnswer(ValueError):
    """The bytes are not what the server's interface says; in words."""


def decode(body: bytes, kind: type[Kind]) -> Kind:
    """The bytes as `kind`. Raises `NoAnswer`, whatever they are."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: they are no UTF-8
        raise NoAnswer(str(error)[:300]) from None


def text_scores(values: Sequence[float | None]) -> FloatArray:
    """Log-probs of a text. Raises `NoAnswer` for one that is none."""
    found = [one for one in values if one is not None and NO_LOGPROB < one <= ROUNDING]
    if len(found) < len(values):
        raise NoAnswer(f"it gave no log-prob for {len(values) - len(found)} tokens of a text")
    return np.array(found, np.float32)


class EventFault(Exception):
    """A server's event says that the answer has failed. `status` and `body`: of a reply that would say so."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"an event that stands for status {status}")
        self.status = status
        self.body = body


class Span(NamedTuple):
    """Tokens `start` up to below `end` were made by the weights with this label."""

    label: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WireAnswer:
    """What a server says of one answer. `spans`: of its tokens; `label`: of its end; None: the server does not say."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: FinishReason
    spans: Sequence[Span] | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True)
class WirePiece:
    """What a server says in one event of an answer; its end and the `spans` come with the last one.

    `so_far`: how many tokens the answer has with this event, from a server that may repeat those of earlier ones; None:
    all of its tokens are new.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason | None = None
    spans: Sequence[Span] | None = None
    label: str | None = None
    so_far: int | None = None


@dataclass(frozen=True, slots=True)
class Labels:
    """What versions are called on a server. `run` is of this start of the run, so that no label of another is ours."""

    run: str

    def of(self, version: PolicyVersion) -> str:
        """The name of a version."""
        return f"rlx-{self.run}-{version}"

    def version(self, label: str) -> PolicyVersion | None:
        """The version behind a name; None: it is not one of ours."""
        head, _, text = label.rpartition("-")
        incarnation, _, step = text.partition(".")
        if head != f"rlx-{self.run}" or not (_is_number(incarnation) and _is_number(step)):
            return None
        return PolicyVersion(int(incarnation), int(step))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


@dataclass(frozen=True, slots=True)
class Expected:
    """What an answer has to be like. `served`: the version that was served when the request was sent.

    `is_pinned`: that version makes all of it; else the server says which made what.
    """

    url: str
    labels: Labels
    served: PolicyVersion
    is_pinned: bool
    max_tokens: int
    vocabulary: int


class Times(NamedTuple):
    """Seconds of the run's clock. `first_token`: when it came; None: there was none."""

    submit: float
    start: float
    first_token: float | None
    finish: float


def completion(
    answer: WireAnswer, expected: Expected, times: Times, behind: Chunk | None = None
) -> Completion:
    """The record; `behind`: the tokens of earlier attempts with which it begins.

    Raises `BackendUnavailable` for an answer that no sound server gives, `BackendRejected` for one whose log-probs are
    missing or miscounted, and `WeightsLost` for one of weights that we did not publish.
    """
    if not answer.token_ids and answer.finish_reason is not FinishReason.ABORT:
        raise BackendUnavailable(f"{expected.url} gave an answer without a token")
    check_tokens(answer.token_ids, answer.logprobs, expected)
    begin = 0 if behind is None else behind.end
    made = Chunk(
        begin,
        np.array(answer.token_ids, np.int32),
        np.array(answer.logprobs, np.float32),
        _steps(answer, expected),
    )
    whole = made if behind is None else joined([behind, made])
    return Completion(
        token_ids=whole.token_ids,
        logprobs=whole.logprobs,
        policy_steps=whole.policy_steps,
        finish_reason=answer.finish_reason,
        incarnation=expected.served.incarnation,
        worker=expected.url,
        submit_s=times.submit,
        start_s=times.start,
        first_token_s=times.finish if times.first_token is None else times.first_token,
        finish_s=times.finish,
    )


def check_tokens(
    token_ids: Sequence[int], logprobs: Sequence[float], expected: Expected, before: int = 0
) -> None:
    """Raise as `completion` does for these tokens behind the first `before` ones of the answer."""
    url, count = expected.url, len(token_ids)
    if before + count > expected.max_tokens:
        raise BackendUnavailable(
            f"{url} gave {before + count} tokens, where {expected.max_tokens} were asked for"
        )
    if count and not 0 <= min(token_ids) <= max(token_ids) < expected.vocabulary:
        raise BackendUnavailable(
            f"{url} gave token ids from {min(token_ids)} to {max(token_ids)}; the model that is trained"
            f" has 0 to {expected.vocabulary - 1}: does the server run another one?"
        )
    if len(logprobs) != count:
        words = f"{url} gave {len(logprobs)} log-probs for {count} tokens"
        raise BackendRejected(words).losing(before + count)
    if bad := [one for one in logprobs if not NO_LOGPROB < one <= ROUNDING]:
        raise BackendRejected(
            f"{url} gave {len(bad)} log-probs that are none, such as {bad[0]:g}, for {count} tokens"
        ).losing(before + count)


def check_label(label: str | None, expected: Expected) -> None:
    """Raise `WeightsLost` where a server names other weights than those that all of an answer has to be of."""
    if label is None:
        return
    found = _ours(label, expected)
    if not expected.is_pinned and found != expected.served:
        raise WeightsLost(
            f"{expected.url} answered with weights {found}, and {expected.served} is what it acknowledged: its weights"
            " were changed by somebody else"
        )


def _steps(answer: WireAnswer, expected: Expected) -> IntArray:
    """Optimizer step of the weights behind each token."""
    count, served = len(answer.token_ids), expected.served
    if expected.is_pinned or answer.spans is None:
        check_label(answer.label, expected)
        return np.full(count, served.step, np.int32)
    steps = np.full(count, -1, np.int32)
    for span in answer.spans:
        version = _ours(span.label, expected)
        if version < served or version.incarnation != served.incarnation:
            raise WeightsLost(
                f"{expected.url} answered with weights {version}, and {served} is what it acknowledged"
            )
        steps[span.start : span.end] = version.step
    if count and ((steps < 0).any() or (np.diff(steps) < 0).any()):
        raise BackendUnavailable(
            f"{expected.url} did not say which weights made each of {count} tokens"
        ).losing(count)
    return steps


def _ours(label: str, expected: Expected) -> PolicyVersion:
    version = expected.labels.version(label)
    if version is None:
        raise WeightsLost(
            f"{expected.url} serves weights that this run did not publish ({label[:80]!r}): it was started again, or"
            " somebody else publishes to it"
        )
    return version
