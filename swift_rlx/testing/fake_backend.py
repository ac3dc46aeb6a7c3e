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
from swift_rlx.backends.progress import OnProgress, unwatched
from swift_rlx.clock import Clock, LoopClock, Timer
from swift_rlx.errors import BackendError, BackendUnavailable
from swift_rlx.types import BoolArray, Chunk, Completion, FinishReason, PolicyVersion

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
    """What goes wrong with a request: after `after_s` seconds `error` is raised; None: it makes no further token.

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
    tell_s: float = 0.0
    """Every how many seconds the new tokens of an answer are told; 0: never."""
    publish_s: float = 0.0
    health_fault: Callable[[], BackendError | None] = lambda: None


@dataclass(eq=False)
class _Answer:
    """`latency_s`: of the whole answer; `kept`: tokens of its prefix; `stall_s`: from when on it makes none."""

    request: GenerationRequest
    start_s: float
    version: PolicyVersion
    latency_s: float
    kept: int
    stall_s: float = math.inf
    ended: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    aborted: bool = False
    deaf: bool = False
    told: int = 0
    timers: dict[str, Timer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.told = self.kept

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
        self._script = script or FakeScript()
        self.capabilities = Capabilities(
            keep=mode is WeightUpdate.KEEP, pin=mode is WeightUpdate.PIN, streams=self._script.tell_s > 0
        )
        self.generated_tokens = 0
        self.max_seen_inflight = 0
        self.requests = 0
        self.published: list[PolicyVersion] = []
        self.is_closed = False
        self._clock = clock or LoopClock()
        self._version = version or PolicyVersion()
        self._changes: list[tuple[float, int]] = []  # publishes as (time, step) that answers in flight saw
        self._answers: dict[str, _Answer] = {}

    async def generate(self, request: GenerationRequest, on_progress: OnProgress = unwatched) -> Completion:
        """An answer of random-free token ids (0, 1, 2, ...) with log-probs of -1."""
        if self.is_closed:
            raise BackendUnavailable(f"worker '{self.name}' is closed")
        self.requests += 1
        answer, fault = self._begin(request), self._script.fault(request)
        self._answers[request.request_id] = answer
        self.max_seen_inflight = max(self.max_seen_inflight, len(self._answers))
        answer.deaf = fault is not None and fault.deaf
        if fault is None:
            left_s = answer.latency_s - answer.kept / self._script.tokens_per_s
            answer.timers["end"] = self._clock.call_later(max(left_s, 0.0), answer.end)
        elif fault.error is not None:
            answer.timers["end"] = self._clock.call_later(fault.after_s, answer.end)
        else:
            answer.stall_s = fault.after_s
        if self._script.tell_s:
            self._tell_later(answer, on_progress)
        try:
            await answer.ended
        finally:
            for timer in answer.timers.values():
                timer.cancel()
            del self._answers[request.request_id]
        count = self._count(answer)
        if fault is not None and fault.error is not None and not answer.aborted:
            self.generated_tokens += count - answer.told
            error = fault.error(f"worker '{self.name}': scripted fault of {request.request_id}")
            raise error.losing(count - answer.kept)
        return self._completion(answer, count if answer.aborted else max(count, 1))

    def _begin(self, request: GenerationRequest) -> _Answer:
        """It goes on behind a prefix, except where the environment has tokens between those of the policy."""
        prefix, has_environment = request.prefix, self._script.sampled(request, 1) is not None
        return _Answer(
            request=request,
            start_s=self._clock.now(),
            version=self._version,
            latency_s=self._script.latency(request),
            kept=0 if prefix is None or has_environment else prefix.num_tokens,
        )

    def _tell_later(self, answer: _Answer, on_progress: OnProgress) -> None:
        def tell() -> None:
            self._tell(answer, on_progress)
            self._tell_later(answer, on_progress)

        answer.timers["tell"] = self._clock.call_later(self._script.tell_s, tell)

    def _tell(self, answer: _Answer, on_progress: OnProgress) -> None:
        """All but the last token are told as they come; beside an environment's, only that there are some."""
        script, told = self._script, answer.told
        if script.sampled(answer.request, 1) is not None:
            none = np.zeros(0, np.int32)
            on_progress(Chunk(0, none, none.astype(np.float32), none, answer.version.incarnation))
            return
        total = min(int(answer.latency_s * script.tokens_per_s + 1e-6), script.max_tokens)
        count = min(self._count(answer), total - 1)
        if count <= told:
            return
        self.generated_tokens += count - told
        answer.told = count
        ids, logprobs = np.arange(told, count, dtype=np.int32), np.full(count - told, -1.0, np.float32)
        steps, first_token_s = self._steps(answer, count)[told:], answer.start_s + 1 / script.tokens_per_s
        incarnation = answer.version.incarnation
        on_progress(Chunk(told, ids, logprobs, steps, incarnation, answer.start_s, first_token_s))

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

    def _count(self, answer: _Answer) -> int:
        """Tokens that exist now. Rounded by 1e-6: binary fractions must not decide about a token."""
        rate = self._script.tokens_per_s
        left_s = answer.latency_s - answer.kept / rate
        seconds = max(min(self._clock.now() - answer.start_s, left_s, answer.stall_s), 0.0)
        return min(answer.kept + int(seconds * rate + 1e-6), self._script.max_tokens)

    def _completion(self, answer: _Answer, count: int) -> Completion:
        request, sampled = answer.request, self._script.sampled(answer.request, count)
        logprobs = np.full(count, -1.0, dtype=np.float32)
        steps = self._steps(answer, count)
        if sampled is not None:
            logprobs -= 1e-3 * (self.requests % 997)  # one that begins anew is not taken for one that goes on
            logprobs[~sampled], steps[~sampled] = np.nan, -1
        if request.prefix is not None:
            logprobs[: answer.kept] = request.prefix.logprobs[: answer.kept]
        self.generated_tokens += count - answer.told if sampled is None else int(sampled.sum())
        cut = count == self._script.max_tokens
        reason = FinishReason.ABORT if answer.aborted else FinishReason.LENGTH if cut else FinishReason.STOP
        return Completion(
            token_ids=np.arange(count, dtype=np.int32),
            logprobs=logprobs,
            policy_steps=steps,
            finish_reason=reason,
            incarnation=answer.version.incarnation,
            worker=self.name,
            submit_s=request.submit_s,
            start_s=answer.start_s,
            first_token_s=min(answer.start_s + 1 / self._script.tokens_per_s, self._clock.now()),
            finish_s=self._clock.now(),
            sampled=sampled,
        )

    def _steps(self, answer: _Answer, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        """Optimizer step of the weights behind each token, [count]."""
        steps = np.full(count, answer.version.step, dtype=np.int32)
        if self.capabilities.keep:
            for when, step in self._changes:
                if step > answer.version.step:
                    done = int((when - answer.start_s) * self._script.tokens_per_s + 1e-6)
                    steps[answer.kept + done :] = step
        if answer.kept and answer.request.prefix is not None:
            steps[: answer.kept] = answer.request.prefix.policy_steps
        return steps

    def _forget_old_changes(self) -> None:
        """Drop changes from before the oldest answer in flight, so that memory stays flat."""
        oldest = min((answer.start_s for answer in self._answers.values()), default=self._clock.now())
        self._changes = [change for change in self._changes if change[0] >= oldest]
