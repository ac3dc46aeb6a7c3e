"""An answer while it is made: its tokens so far, its randomness, and when it ends."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from swift_rlx.backends.base import GenerationRequest
from swift_rlx.backends.transformers_sampling import Filters
from swift_rlx.errors import BackendError
from swift_rlx.types import Completion, FinishReason, PolicyVersion


@dataclass(eq=False)
class Answer:
    """A request on its way. `limit`: most tokens; `ends`: ids that end it; `says_stop`: whether tokens do so."""

    request: GenerationRequest
    deliver: Callable[[Completion | BackendError], None]
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

    def add(self, token: int, logprob: float, version: PolicyVersion, now: float) -> None:
        """One more token, which may be the last."""
        if not self.tokens:
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
        self.deliver(
            Completion(
                token_ids=np.array(self.tokens, np.int32),
                logprobs=np.array(self.logprobs, np.float32),
                policy_steps=np.array([version.step for version in self.versions], np.int32),
                finish_reason=reason,
                incarnation=self.versions[-1].incarnation if self.versions else 0,
                submit_s=self.request.submit_s,
                start_s=self.start_s or now,
                first_token_s=self.first_token_s or now,
                finish_s=now,
            )
        )

    def fail(self, error: BackendError) -> None:
        """Give up; what was generated is lost."""
        self.is_over = True
        self.deliver(error.losing(len(self.tokens)))

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
