"""An engine whose answers take scripted times: it sleeps like an accelerator that computes, and takes real weights.

`EngineSpec("sleeping_engine:create", ...)`; the script is JSON in the environment variable `SLEEPING_ENGINE`, with the
fields of `Script`. An answer's latency depends on its prompt and member alone, not on what else runs. Weights, the
probe and health are those of the engine `transformers`.
"""

from __future__ import annotations

import asyncio
import json
import os
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import asdict, dataclass

import numpy as np

from swift_rlx.backends import Capabilities, EngineSpec, GenerationRequest, Health, OnProgress, unwatched
from swift_rlx.backends.transformers_engine import create as create_transformers
from swift_rlx.testing.fake_backend import LogNormalLatency
from swift_rlx.types import Completion, FinishReason, FloatArray, IntArray, PolicyVersion

VARIABLE = "SLEEPING_ENGINE"
FIRST_ID = 10  # past the special tokens of the tiny model


@dataclass(frozen=True)
class Script:
    """Answers of `tokens` tokens, evenly spaced over a log-normal latency (constant for sigma 0)."""

    median_s: float
    sigma: float
    tokens: int
    seed: int = 0

    @classmethod
    def read(cls) -> Script:
        return cls(**json.loads(os.environ[VARIABLE]))

    def write(self) -> None:
        """For the processes that are started from here on."""
        os.environ[VARIABLE] = json.dumps(asdict(self))

    def latency_s(self, epoch: int, index: int, member: int) -> float:
        return LogNormalLatency(self.median_s, self.sigma, self.seed).of(epoch, index, member)

    def token_ids(self, index: int, member: int) -> list[int]:
        """Some letters that differ from answer to answer."""
        return [FIRST_ID + (3 * index + 5 * member + at * (1 + member)) % 80 for at in range(self.tokens)]


class SleepingEngine:
    def __init__(self, spec: EngineSpec) -> None:
        self.name = spec.name
        self.capabilities = Capabilities(keep=True)
        self._engine = create_transformers(spec)
        self._script = Script.read()
        self._incarnation = spec.version.incarnation
        self._live_s, self._live_step = [float("-inf")], [spec.version.step]
        self._ends: dict[str, asyncio.Event] = {}

    async def generate(self, request: GenerationRequest, on_progress: OnProgress = unwatched) -> Completion:
        now, prompt, script = asyncio.get_running_loop().time, request.prompt, self._script
        latency_s, start_s = script.latency_s(prompt.epoch, prompt.index, request.member), now()
        end = self._ends[request.request_id] = asyncio.Event()
        try:
            await asyncio.wait_for(end.wait(), latency_s)
            count, reason = int(script.tokens * (now() - start_s) / latency_s), FinishReason.ABORT
        except (TimeoutError, asyncio.TimeoutError):
            count, reason = script.tokens, FinishReason.LENGTH
        finally:
            del self._ends[request.request_id]
        made_s = [start_s + latency_s * (at + 1) / script.tokens for at in range(count)]
        steps = [self._live_step[bisect_right(self._live_s, when) - 1] for when in made_s]
        return Completion(
            token_ids=np.array(script.token_ids(prompt.index, request.member)[:count], np.int32),
            logprobs=np.full(count, -5.0, np.float32),
            policy_steps=np.array(steps, np.int32),
            finish_reason=reason,
            incarnation=self._incarnation,
            submit_s=request.submit_s,
            start_s=start_s,
            first_token_s=made_s[0] if made_s else now(),
            finish_s=now(),
        )

    async def abort(self, request_ids: Collection[str]) -> None:
        for request_id in self._ends.keys() & set(request_ids):
            self._ends[request_id].set()

    async def publish(self, version: PolicyVersion, payload: object) -> None:
        await self._engine.publish(version, payload)
        self._incarnation = version.incarnation
        self._live_s.append(asyncio.get_running_loop().time())
        self._live_step.append(version.step)

    async def logprobs(self, token_ids: IntArray) -> FloatArray:
        return await self._engine.logprobs(token_ids)

    async def health(self) -> Health:
        return await self._engine.health()

    async def close(self) -> None:
        for end in self._ends.values():
            end.set()
        await self._engine.close()


def create(spec: EngineSpec) -> SleepingEngine:
    return SleepingEngine(spec)
