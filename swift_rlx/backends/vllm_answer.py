"""One request to vLLM: its sampling parameters, and the answer that is put together from what comes back."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from swift_rlx.backends.answer_prefix import seed_behind
from swift_rlx.backends.base import GenerationRequest
from swift_rlx.backends.progress import joined
from swift_rlx.errors import BackendError, BackendRejected
from swift_rlx.types import Chunk, Completion, FinishReason, IntArray, PolicyVersion

STREAM_TOKENS, STREAM_TOKENS_CPU = 16, 4
"""Tokens that vLLM hands over at once after the first; more of them cost less, fewer are lost with a worker."""


class Span(NamedTuple):
    """Tokens `start` up to below `end` were made by the weights with this label."""

    version: str
    start: int
    end: int


def sampling_parameters(request: GenerationRequest, num_kept: int, stream_tokens: int) -> Any:
    """vLLM's `SamplingParams` for what follows the first `num_kept` tokens of the answer.

    Raises `BackendRejected` for what vLLM does not take.
    """
    from vllm import SamplingParams
    from vllm.exceptions import VLLMClientError
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    try:
        return SamplingParams(
            max_tokens=sampling.max_tokens - num_kept,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            seed=seed_behind(sampling.seed, num_kept),
            stop=list(sampling.stop),
            stop_token_ids=list(sampling.stop_token_ids),
            logit_bias=dict.fromkeys(sampling.barred_token_ids, float("-inf")) or None,
            logprobs=0,  # of the sampled token alone
            flat_logprobs=True,
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.DELTA,
            stream_interval=stream_tokens,
        )
    except (VLLMClientError, TypeError, ValueError) as error:
        raise BackendRejected(f"request '{request.request_id}' is refused by vLLM: {error}") from error


def policy_steps(spans: Iterable[Span], count: int) -> IntArray:
    """Optimizer step of the weights behind each of `count` tokens; the label of a span is a `PolicyVersion`.

    Raises `BackendError` where the spans do not cover the tokens.
    """
    steps = np.full(count, -1, np.int32)
    for span in spans:
        steps[span.start : span.end] = int(span.version.rpartition(".")[2])
    if (steps < 0).any():
        raise BackendError(f"vLLM did not say which weights made {int((steps < 0).sum())} of {count} tokens")
    return steps


def spans_so_far(output_processor: Any, request_id: str) -> list[Span] | None:
    """As `weight_versions` of a finished answer, for one that vLLM still makes; None: it does not any more."""
    internal_ids = output_processor.external_req_ids.get(request_id)
    if not internal_ids:
        return None
    starts = output_processor.request_states[internal_ids[0]].weight_version_starts
    ends = [start for _, start in starts[1:]] + [sys.maxsize]
    return [Span(version, start, end) for (version, start), end in zip(starts, ends, strict=True)]


@dataclass(slots=True, eq=False)
class Answer:
    """An answer in the making. `token_ids` and `logprobs`: of what follows `prefix`.

    `has_begun`: vLLM may know it. `adapter`: vLLM's `LoRARequest`. `pinned`: the one version that makes the whole
    answer; None: vLLM says which made which token.
    """

    request: GenerationRequest
    start_s: float
    prefix: Chunk | None = None
    has_begun: bool = False
    adapter: Any = None
    pinned: PolicyVersion | None = None
    first_token_s: float | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    finish_reason: str | None = None
    is_aborted: bool = False
    num_told: int = 0

    @property
    def num_kept(self) -> int:
        """Tokens of earlier attempts."""
        return 0 if self.prefix is None else self.prefix.num_tokens

    def add(self, output: Any, now_s: float) -> None:
        """Take one `RequestOutput` of vLLM."""
        [part] = output.outputs
        if part.token_ids and self.first_token_s is None:
            self.first_token_s = now_s
        self.token_ids += part.token_ids
        if part.token_ids:
            self.logprobs += part.logprobs.logprobs
        if part.finish_reason is not None:
            self.finish_reason = part.finish_reason
            self.spans = [Span(one.version, one.start, one.end) for one in part.weight_versions or ()]

    def news(self, incarnation: int) -> Chunk:
        """The tokens that came since the last call. Raises `BackendError` where vLLM did not say what made them."""
        begin, self.num_told = self.num_told, len(self.token_ids)
        return Chunk(
            self.num_kept + begin,
            np.array(self.token_ids[begin:], np.int32),
            np.array(self.logprobs[begin:], np.float32),
            self._steps()[begin:],
            incarnation,
            self.start_s,
            self.first_token_s or self.start_s,
        )

    def completion(self, worker: str, incarnation: int, now_s: float) -> Completion:
        """The finished record. Raises `BackendError` for an end that is an error of vLLM's."""
        count = len(self.token_ids)
        if self.finish_reason not in {reason.value for reason in FinishReason} or len(self.logprobs) != count:
            raise BackendError(
                f"request '{self.request.request_id}': vLLM ended it by '{self.finish_reason}' with {count} tokens and"
                f" {len(self.logprobs)} log-probs"
            )
        rest = Chunk(
            self.num_kept,
            np.array(self.token_ids, np.int32),
            np.array(self.logprobs, np.float32),
            self._steps(),
        )
        whole = rest if self.prefix is None else joined([self.prefix, rest])
        return Completion(
            token_ids=whole.token_ids,
            logprobs=whole.logprobs,
            policy_steps=whole.policy_steps,
            finish_reason=FinishReason(self.finish_reason),
            incarnation=incarnation,
            worker=worker,
            submit_s=self.request.submit_s,
            start_s=self.start_s,
            first_token_s=now_s if self.first_token_s is None else self.first_token_s,
            finish_s=now_s,
        )

    def _steps(self) -> IntArray:
        count = len(self.token_ids)
        if self.pinned is not None:
            return np.full(count, self.pinned.step, np.int32)
        return policy_steps(self.spans, count)
