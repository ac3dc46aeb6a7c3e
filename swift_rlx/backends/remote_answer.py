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

from swift_rlx.errors import BackendRejected, BackendUnavailable, WeightsLost
from swift_rlx.types import Completion, FinishReason, FloatArray, IntArray, PolicyVersion

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
    """Seconds of the run's clock."""

    submit: float
    start: float
    finish: float


def completion(answer: WireAnswer, expected: Expected, times: Times) -> Completion:
    """The record.

    Raises `BackendUnavailable` for an answer that no sound server gives, `BackendRejected` for one whose log-probs are
    missing or miscounted, and `WeightsLost` for one of weights that we did not publish.
    """
    _check_tokens(answer, expected)
    steps = _steps(answer, expected)
    return Completion(
        token_ids=np.array(answer.token_ids, np.int32),
        logprobs=np.array(answer.logprobs, np.float32),
        policy_steps=steps,
        finish_reason=answer.finish_reason,
        incarnation=expected.served.incarnation,
        worker=expected.url,
        submit_s=times.submit,
        start_s=times.start,
        first_token_s=times.finish,  # the answer came in one piece
        finish_s=times.finish,
    )


def _check_tokens(answer: WireAnswer, expected: Expected) -> None:
    url, count = expected.url, len(answer.token_ids)
    if not count and answer.finish_reason is not FinishReason.ABORT:
        raise BackendUnavailable(f"{url} gave an answer without a token")
    if count > expected.max_tokens:
        raise BackendUnavailable(f"{url} gave {count} tokens, where {expected.max_tokens} were asked for")
    if count and not 0 <= min(answer.token_ids) <= max(answer.token_ids) < expected.vocabulary:
        raise BackendUnavailable(
            f"{url} gave token ids from {min(answer.token_ids)} to {max(answer.token_ids)}; the model that is trained"
            f" has 0 to {expected.vocabulary - 1}: does the server run another one?"
        )
    if len(answer.logprobs) != count:
        raise BackendRejected(f"{url} gave {len(answer.logprobs)} log-probs for {count} tokens").losing(count)
    if bad := [one for one in answer.logprobs if not NO_LOGPROB < one <= ROUNDING]:
        raise BackendRejected(
            f"{url} gave {len(bad)} log-probs that are none, such as {bad[0]:g}, for {count} tokens"
        ).losing(count)


def _steps(answer: WireAnswer, expected: Expected) -> IntArray:
    """Optimizer step of the weights behind each token."""
    count, served = len(answer.token_ids), expected.served
    if expected.is_pinned:
        if answer.label is not None:
            _ours(answer.label, expected)
        return np.full(count, served.step, np.int32)
    if answer.spans is None:
        found = served if answer.label is None else _ours(answer.label, expected)
        if found != served:
            raise WeightsLost(
                f"{expected.url} answered with weights {found}, and {served} is what it acknowledged: its weights were"
                " changed by somebody else"
            )
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
