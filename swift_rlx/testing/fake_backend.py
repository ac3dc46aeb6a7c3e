"""A rollout backend without a model: lengths, latencies and faults follow a script, time follows the clock.

How long an answer takes depends on the seed of the script, the prompt and the member alone, never on what else
runs; so two schedulers see the same arrivals. Under `keep` an answer's tokens carry the version that was live
when each was made, evenly spaced over its latency.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from swift_rlx.backends.base import Capabilities, GenerationRequest, Health, WeightUpdate
from swift_rlx.clock import Clock, LoopClock
from swift_rlx.errors import BackendError, BackendUnavailable
from swift_rlx.types import BoolArray, Completion, FinishReason, PolicyVersion

Latency = Callable[[GenerationRequest], float]


@dataclass(frozen=True)
class ConstantLatency:
    """Every answer takes `seconds`."""

    seconds: float

    def __call__(self, request: GenerationRequest) -> float:
        return self.seconds


@dataclass(frozen=True)
class LogNormalLatency:
    """Log-normal seconds with this median, drawn from (seed, prompt, member)."""

    median_s: float
    sigma: float
    seed: int = 0

    def __call__(self, request: GenerationRequest) -> float:
        return self.of(request.prompt.epoch, request.prompt.index, request.member)

    def of(self, epoch: int, index: int, member: int = 0) -> float:
        """Seconds for one answer."""
        chance = random.Random(f"{self.seed}/{epoch}/{index}/{member}")
        return self.median_s * math.exp(self.sigma * chance.gauss(0.0, 1.0))


@dataclass(frozen=True)
class Fault:
    """What goes wrong with a request: after `after_s` seconds `error` is raised; None: it hangs until cancelled.

    `deaf`: it does not react to `abort` either.
    """

    error: Callable[[str], BackendError] | None
    after_s: float = 0.0
    deaf: bool = False


@dataclass(frozen=True)
class FakeScript:
    """How a fake worker behaves. `fault(request)` is asked once for each request."""

    latency: Latency = ConstantLatency(1.0)
    tokens_per_s: float = 10.0
    max_tokens: int = 1_000_000
    fault: Callable[[GenerationRequest], Fault | None] = lambda request: None
    sampled: Callable[[GenerationRequest, int], BoolArray | None] = lambda request, count: None
    """Which of so many tokens of an answer the policy made; the others get no log-prob and the step -1."""
    publish_s: float = 0.0
    health_fault: Callable[[], BackendError | None] = lambda: None


@dataclass(eq=False)
class _Answer:
    request: GenerationRequest
    start_s: float
    step: int
    ended: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    aborted: bool = False
    deaf: bool = False

    def end(self, aborted: bool = False) -> None:
        if not self.ended.done():
            self.aborted = aborted
            self.ended.set_result(None)


class FakeBackend:
    """A scripted worker. `generated_tokens` counts what it made; `max_seen_inflight` its fullest moment."""

    def __init__(
        self,
        name: str = "worker-0",
        script: FakeScript | None = None,
        *,
        mode: WeightUpdate = WeightUpdate.KEEP,
        clock: Clock | None = None,
        version: PolicyVersion | None = None,
    ) -> None:
        self.name = name
        self.capabilities = Capabilities(keep=mode is WeightUpdate.KEEP, pin=mode is WeightUpdate.PIN)
        self.generated_tokens = 0
        self.max_seen_inflight = 0
        self.requests = 0
        self.published: list[PolicyVersion] = []
        self.is_closed = False
        self._script = script or FakeScript()
        self._clock = clock or LoopClock()
        self._version = version or PolicyVersion()
        self._changes: list[tuple[float, int]] = []  # publishes as (time, step) that answers in flight saw
        self._answers: dict[str, _Answer] = {}

    async def generate(self, request: GenerationRequest) -> Completion:
        """An answer of random-free token ids (0, 1, 2, ...) with log-probs of -1."""
        if self.is_closed:
            raise BackendUnavailable(f"worker '{self.name}' is closed")
        self.requests += 1
        answer = _Answer(request, self._clock.now(), self._version.step)
        self._answers[request.request_id] = answer
        self.max_seen_inflight = max(self.max_seen_inflight, len(self._answers))
        fault, latency = self._script.fault(request), self._script.latency(request)
        answer.deaf = fault is not None and fault.deaf
        timer = None
        if fault is None or fault.error is not None:
            delay = latency if fault is None else fault.after_s
            timer = self._clock.call_later(delay, answer.end)
        try:
            await answer.ended
        finally:
            if timer is not None:
                timer.cancel()
            del self._answers[request.request_id]
        if fault is not None and fault.error is not None and not answer.aborted:
            lost = self._count(answer, latency)
            self.generated_tokens += lost
            raise fault.error(f"worker '{self.name}': scripted fault of {request.request_id}").losing(lost)
        return self._completion(answer, latency)

    async def abort(self, request_ids: Collection[str]) -> None:
        """End these requests with the tokens that they have."""
        for request_id in request_ids:
            answer = self._answers.get(request_id)
            if answer is not None and not answer.deaf:
                answer.end(aborted=True)

    async def publish(self, version: PolicyVersion, payload: object) -> None:
        """Serve `version` after the scripted time."""
        if self._script.publish_s:
            await self._clock.sleep(self._script.publish_s)
        if self._answers and not (self.capabilities.keep or self.capabilities.pin):
            raise BackendError(f"worker '{self.name}' has {len(self._answers)} answers in flight")
        self._version = version
        self._changes.append((self._clock.now(), version.step))
        self._forget_old_changes()
        self.published.append(version)

    async def health(self) -> Health:
        """The version served, or the scripted fault."""
        if (error := self._script.health_fault()) is not None:
            raise error
        return Health(self._version)

    async def close(self) -> None:
        """End every answer with the tokens it has."""
        self.is_closed = True
        for answer in list(self._answers.values()):
            answer.end(aborted=True)

    def _count(self, answer: _Answer, latency: float) -> int:
        """Tokens that exist now. Rounded by 1e-6: binary fractions must not decide about a token."""
        seconds = min(self._clock.now() - answer.start_s, latency)
        return min(int(seconds * self._script.tokens_per_s + 1e-6), self._script.max_tokens)

    def _completion(self, answer: _Answer, latency: float) -> Completion:
        count = self._count(answer, latency)
        if not answer.aborted:
            count = max(count, 1)
        sampled = self._script.sampled(answer.request, count)
        logprobs = np.full(count, -1.0, dtype=np.float32)
        steps = self._steps(answer, count)
        if sampled is not None:
            logprobs[~sampled], steps[~sampled] = np.nan, -1
        self.generated_tokens += count if sampled is None else int(sampled.sum())
        cut = count == self._script.max_tokens
        reason = FinishReason.ABORT if answer.aborted else FinishReason.LENGTH if cut else FinishReason.STOP
        request = answer.request
        return Completion(
            token_ids=np.arange(count, dtype=np.int32),
            logprobs=logprobs,
            policy_steps=steps,
            finish_reason=reason,
            incarnation=self._version.incarnation,
            worker=self.name,
            submit_s=request.submit_s,
            start_s=answer.start_s,
            first_token_s=min(answer.start_s + 1 / self._script.tokens_per_s, self._clock.now()),
            finish_s=self._clock.now(),
            sampled=sampled,
        )

    def _steps(self, answer: _Answer, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        """Optimizer step of the weights behind each token, [count]."""
        steps = np.full(count, answer.step, dtype=np.int32)
        if self.capabilities.keep:
            for when, step in self._changes:
                if step > answer.step:
                    done = int((when - answer.start_s) * self._script.tokens_per_s + 1e-6)
                    steps[done:] = step
        return steps

    def _forget_old_changes(self) -> None:
        """Drop changes from before the oldest answer in flight, so that memory stays flat."""
        oldest = min((answer.start_s for answer in self._answers.values()), default=self._clock.now())
        self._changes = [change for change in self._changes if change[0] >= oldest]
