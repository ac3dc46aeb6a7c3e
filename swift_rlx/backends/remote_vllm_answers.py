"""Answers of vLLM's server: how they are asked for, and how what comes is read.

All of it is /inference/v1/generate (`--enable-scale-out`), which takes and gives token ids. An answer is asked for as a
stream of events, each with new tokens and their log-probs; the last one says which weights made which token. It is
small because of `stream_interval`: an event for each token would cost the trainer more than the answer.

/v1/completions is not used: it does not say which weights made a token, and has no tokens of an answer that is ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from swift_rlx.backends.remote_answer import (
    Count,
    EventFault,
    NoAnswer,
    Span,
    TokenId,
    WirePiece,
    decode,
)
from swift_rlx.backends.remote_dialect import STREAM_TOKENS, Generation, ServerKind
from swift_rlx.backends.remote_http import Call
from swift_rlx.types import FinishReason, SamplingParams

GENERATE = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"
BARRED = -1e9
"""Added to the logit of a token that is not to be sampled; JSON has no infinity."""
TOPS = 10


class _Top(msgspec.Struct):
    token_id: TokenId
    logprob: float


class _Entry(_Top):
    top_logprobs: list[_Top] = []


class _Logprobs(msgspec.Struct):
    content: list[_Entry]


class _Span(msgspec.Struct):
    version: str
    start: Count
    end: Count


class _Choice(msgspec.Struct):
    token_ids: list[TokenId]
    logprobs: _Logprobs
    finish_reason: str | None = None
    weight_versions: list[_Span] | None = None


class _Generated(msgspec.Struct):
    choices: list[_Choice]


class _Fault(msgspec.Struct):
    code: Count = 500


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Fault | None = None


class VllmAnswers:
    """The part of a `Dialect` that is about answers."""

    kind = ServerKind.VLLM

    def generation(self, one: Generation) -> Call:
        """As `Dialect.generation`."""
        return self._asking(one, {"logprobs": 0, "stream_interval": STREAM_TOKENS}, is_stream=True)

    def piece(self, data: bytes) -> WirePiece:
        """As `Dialect.piece`."""
        event = decode(data, _Event)
        if event.error is not None:
            raise EventFault(max(event.error.code, 400), data)
        choice = _only_choice(event.choices)
        entries = choice.logprobs.content
        if [one.token_id for one in entries] != choice.token_ids[: len(entries)]:
            raise NoAnswer("its log-probs are of other tokens than its answer")
        logprobs = [one.logprob for one in entries]
        if choice.finish_reason is None:
            return WirePiece(choice.token_ids, logprobs)
        try:
            reason = FinishReason(choice.finish_reason)
        except ValueError:
            raise NoAnswer(f"it ended an answer by {choice.finish_reason[:40]!r}") from None
        spans = [Span(one.version, one.start, one.end) for one in choice.weight_versions or ()]
        return WirePiece(choice.token_ids, logprobs, reason, spans)

    def goes_on(self, sampling: SamplingParams) -> bool:
        """As `Dialect.goes_on`."""
        return True

    def aborting(self, wire_ids: Collection[str]) -> Sequence[Call]:
        """As `Dialect.aborting`."""
        ids = [f"generate-tokens-{wire_id}" for wire_id in wire_ids]
        return [Call("POST", ABORT, {"request_ids": ids})]

    def top_logprobs(self, one: Generation, raised: Mapping[int, float] | None = None) -> Call:
        """As `Dialect.top_logprobs`. `raised`: nats that are added to the logits of some tokens."""
        return self._asking(one, {"logprobs": TOPS}, raised=raised)

    def tops(self, body: bytes) -> Mapping[int, float]:
        """As `Dialect.tops`."""
        entries = _only_choice(decode(body, _Generated).choices).logprobs.content
        if not entries:
            raise NoAnswer("it gave no log-prob")
        tops: list[_Top] = [*entries[0].top_logprobs, entries[0]]
        return {one.token_id: one.logprob for one in tops}

    def _asking(
        self,
        one: Generation,
        extra: Mapping[str, Any],
        *,
        raised: Mapping[int, float] | None = None,
        is_stream: bool = False,
    ) -> Call:
        sampling = one.sampling
        bias = {str(token): BARRED for token in sampling.barred_token_ids}
        bias |= {str(token): nats for token, nats in (raised or {}).items()}
        parameters = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": sampling.seed,
            "stop": sampling.stop,
            "stop_token_ids": sampling.stop_token_ids,
            "detokenize": bool(sampling.stop),
            **({"logit_bias": bias} if bias else {}),
            **extra,
        }
        body = {
            "token_ids": one.token_ids.tolist(),
            "sampling_params": parameters,
            **({"request_id": one.wire_id} if one.wire_id else {}),
            **({"model": one.adapter} if one.adapter else {}),
            **({"stream": True} if is_stream else {}),
        }
        return Call("POST", GENERATE, body, one.max_bytes)


def _only_choice(choices: Sequence[_Choice]) -> _Choice:
    if len(choices) != 1:
        raise NoAnswer(f"it gave {len(choices)} answers to one request")
    return choices[0]
