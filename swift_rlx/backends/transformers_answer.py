"""An answer while it is made: its tokens so far, its randomness, and when it ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from swift_rlx.backends.base import GenerationRequest
from swift_rlx.backends.progress import OnProgress
from swift_rlx.backends.transformers_sampling import Filters
from swift_rlx.errors import BackendError
from swift_rlx.types import Chunk, Completion, FinishReason, FloatArray, IntArray, PolicyVersion


@dataclass(eq=False)
class Answer:
    """A request on its way, with the tokens of its prefix. `deliver` and `show` hand over its end and its progress.

    `limit`: most tokens; `ends`: ids that end it; `says_stop`: whether tokens do so.
    """

    request: GenerationRequest
    deliver: Callable[[Completion | BackendError], None]
    show: OnProgress
    limit: int
    ends: Collection[int]
    says_stop: Callable[[list[int]], bool]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[PolicyVersion] = field(default_factory=list)
    start_s: float = 0.0
    first_token_s: float = 0.0
    is_over: bool = False

    def __post_init__(self) -> None:
        self.filters = Filters.of(self.request.sampling)
        self.chance = random.Random(self.request.sampling.seed)
        self.prompt: list[int] = self.request.prompt.token_ids.tolist()
        if (prefix := self.request.prefix) is not None:
            self.tokens = prefix.token_ids.tolist()
            self.logprobs = prefix.logprobs.tolist()
            self.versions = [PolicyVersion(prefix.incarnation, step) for step in prefix.policy_steps.tolist()]
        self.kept = self.told = len(self.tokens)
        for _ in self.tokens:
            self.chance.random()  # each token had one; so the next ones are those that it would have had

    def add(self, token: int, logprob: float, version: PolicyVersion, now: float) -> None:
        """One more token, which may be the last."""
        if len(self.tokens) == self.kept:
            self.first_token_s = now
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in self.ends or self.says_stop(self.tokens):
            self.end(FinishReason.STOP, now)
        elif len(self.tokens) >= self.limit:
            self.end(FinishReason.LENGTH, now)

    def end(self, reason: FinishReason, now: float) -> None:
        """Hand over what there is."""
        self.is_over = True
        token_ids, logprobs, policy_steps = self._arrays(0)
        self.deliver(
            Completion(
                token_ids=token_ids,
                logprobs=logprobs,
                policy_steps=policy_steps,
                finish_reason=reason,
                incarnation=self.versions[-1].incarnation if self.versions else 0,
                submit_s=self.request.submit_s,
                start_s=self.start_s or now,
                first_token_s=self.first_token_s or now,
                finish_s=now,
            )
        )

    def fail(self, error: BackendError) -> None:
        """Give up."""
        self.is_over = True
        self.deliver(error.losing(len(self.tokens) - self.kept))

    def tell(self) -> None:
        """Show the tokens that are new."""
        if len(self.tokens) > self.told and not self.is_over:
            arrays = self._arrays(self.told)
            incarnation = self.versions[-1].incarnation
            self.show(Chunk(self.told, *arrays, incarnation, self.start_s, self.first_token_s))
            self.told = len(self.tokens)

    def _arrays(self, begin: int) -> tuple[IntArray, FloatArray, IntArray]:
        steps = [version.step for version in self.versions[begin:]]
        return (
            np.array(self.tokens[begin:], np.int32),
            np.array(self.logprobs[begin:], np.float32),
            np.array(steps, np.int32),
        )

    @property
    def sequence(self) -> list[int]:
        """Ids of the prompt and of the tokens so far."""
        return self.prompt + self.tokens

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for answers that go on from the same tokens and images."""
        inputs = self.request.prompt.model_inputs
        parts = [(name, inputs[name].shape, inputs[name].tobytes()) for name in sorted(inputs)]
        return tuple(self.sequence), tuple(parts)
