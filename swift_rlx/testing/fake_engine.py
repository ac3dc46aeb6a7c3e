"""An engine without a neural network, to be hosted in a real process: the next token depends on the last one alone.

Its weights are a table of logits [V, V] in the file `logits.npy` of a directory. It samples, aborts, publishes and
fails as a real engine does, in milliseconds and with numpy only.

    EngineSpec("swift_rlx.testing.fake_engine:create", model=directory, options={"token_s": 0.001})
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from swift_rlx.backends import (
    Capabilities,
    EngineSpec,
    GenerationRequest,
    Health,
    OnProgress,
    WeightFiles,
    unwatched,
)
from swift_rlx.clock import LoopClock
from swift_rlx.errors import BackendRejected, BackendUnavailable, WorkerDied
from swift_rlx.types import Chunk, Completion, FinishReason, FloatArray, IntArray, PolicyVersion

LOGITS = "logits.npy"


def save_fake_weights(folder: Path, seed: int, vocabulary: int = 16) -> None:
    """Write random logits to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    logits = np.random.default_rng(seed).normal(0.0, 2.0, (vocabulary, vocabulary))
    np.save(folder / LOGITS, logits.astype(np.float32))


@dataclass(frozen=True, eq=False)
class _Weights:
    version: PolicyVersion
    logits_VV: FloatArray


class FakeEngine:
    """`options` of the spec: `token_s` seconds per token, `update`: "keep", "pin" or "" for neither.

    Prompts that begin with one of these token ids make it misbehave, where the option is set: `crash_token` ends the
    process by SIGKILL, `hang_token` stops the process, `stall_token` makes it forget the request, `lose_token` loses
    the engine, `bug_token` and `busy_token` raise; `fault_after`: when the answer has so many tokens; `once`: in the
    first attempt at it alone.
    `ignores_weights`: new weights are acknowledged only; `deaf`: it never says how it is; `build_s`, `publish_s`:
    how long that takes.
    """

    def __init__(self, spec: EngineSpec) -> None:
        update = str(spec.options.get("update", "keep"))
        self.name = spec.name
        self.capabilities = Capabilities(keep=update == "keep", pin=update == "pin", streams=True)
        self._spec = spec
        self._token_s = float(str(spec.options.get("token_s", 0.0)))
        self._fault_after = int(str(spec.options.get("fault_after", 0)))
        self._weights = _Weights(spec.version, _load(spec.model))
        self._running: set[str] = set()
        self._aborted: set[str] = set()
        self._is_closed = False
        self._clock = LoopClock()

    async def generate(self, request: GenerationRequest, on_progress: OnProgress = unwatched) -> Completion:
        """Samples token by token, and lets the loop go on between any two."""
        if self._is_closed:
            raise BackendUnavailable("the engine is closed")
        self._check(request)
        if request.request_id in self._running:
            raise BackendRejected(f"request '{request.request_id}' is refused: one of that id is in flight")
        start_s = self._clock.now()
        self._running.add(request.request_id)
        try:
            tokens, logprobs, steps, reason = await self._sample(request, on_progress)
        finally:
            self._running.discard(request.request_id)
            self._aborted.discard(request.request_id)
        return Completion(
            token_ids=np.array(tokens, np.int32),
            logprobs=np.array(logprobs, np.float32),
            policy_steps=np.array(steps, np.int32),
            finish_reason=reason,
            incarnation=self._weights.version.incarnation,
            submit_s=request.submit_s,
            start_s=start_s,
            first_token_s=start_s,
            finish_s=self._clock.now(),
        )

    async def abort(self, request_ids: Collection[str]) -> None:
        """They end before their next token."""
        self._aborted |= self._running & set(request_ids)

    async def publish(self, version: PolicyVersion, payload: object) -> None:
        """Load the table."""
        assert isinstance(payload, WeightFiles)
        await asyncio.sleep(float(str(self._spec.options.get("publish_s", 0.0))))
        if self._spec.options.get("ignores_weights"):
            self._weights = _Weights(version, self._weights.logits_VV)
        else:
            self._weights = _Weights(version, _load(payload.directory))

    async def health(self) -> Health:
        """The version of the table."""
        if self._spec.options.get("deaf"):
            await asyncio.Event().wait()
        return Health(self._weights.version)

    async def logprobs(self, token_ids: IntArray) -> FloatArray:
        """Of each token but the first, [T - 1]."""
        rows = [_log_softmax(self._weights.logits_VV[before]) for before in token_ids[:-1]]
        return np.array([row[token] for row, token in zip(rows, token_ids[1:], strict=True)], np.float32)

    async def close(self) -> None:
        """End all answers."""
        self._is_closed = True
        self._aborted |= self._running

    async def _sample(
        self, request: GenerationRequest, on_progress: OnProgress
    ) -> tuple[list[int], list[float], list[int], FinishReason]:
        sampling, pinned, prefix = request.sampling, self._weights, request.prefix
        chance = np.random.default_rng(sampling.seed)
        tokens: list[int] = [] if prefix is None else prefix.token_ids.tolist()
        logprobs: list[float] = [] if prefix is None else prefix.logprobs.tolist()
        steps: list[int] = [] if prefix is None else prefix.policy_steps.tolist()
        chance.gumbel(
            size=(len(tokens) if sampling.temperature else 0, len(pinned.logits_VV))
        )  # drawn already
        token, told = int([*request.prompt.token_ids, *tokens][-1]), len(tokens)
        while len(tokens) < min(sampling.max_tokens, self._limit - len(request.prompt.token_ids)):
            if len(tokens) > told:
                on_progress(self._chunk(told, tokens, logprobs, steps))
                told = len(tokens)
            await asyncio.sleep(self._token_s)
            if len(tokens) >= self._fault_after:
                await self._misbehave(request)
            if request.request_id in self._aborted:
                return tokens, logprobs, steps, FinishReason.ABORT
            weights = pinned if self.capabilities.pin else self._weights
            row = _log_softmax(
                _filtered(weights.logits_VV[token] / (sampling.temperature or 1.0), sampling.top_k)
            )
            noise = chance.gumbel(size=len(row)) if sampling.temperature else 0.0
            token = int(np.argmax(row + noise))
            tokens.append(token)
            logprobs.append(float(row[token]))
            steps.append(weights.version.step)
            if token in sampling.stop_token_ids:
                return tokens, logprobs, steps, FinishReason.STOP
        return tokens, logprobs, steps, FinishReason.LENGTH

    def _chunk(self, begin: int, tokens: list[int], logprobs: list[float], steps: list[int]) -> Chunk:
        return Chunk(
            begin,
            np.array(tokens[begin:], np.int32),
            np.array(logprobs[begin:], np.float32),
            np.array(steps[begin:], np.int32),
            self._weights.version.incarnation,
        )

    @property
    def _limit(self) -> int:
        return self._spec.max_model_len or 1_000_000

    def _check(self, request: GenerationRequest) -> None:
        ids, vocabulary = request.prompt.token_ids, len(self._weights.logits_VV)
        if not 0 < len(ids) < self._limit:
            raise BackendRejected(f"a prompt of {len(ids)} tokens is refused: use 1 to {self._limit - 1}")
        if ids.min() < 0 or ids.max() >= vocabulary:
            raise BackendRejected(f"token ids {ids.tolist()} are refused: use 0 to {vocabulary - 1}")

    async def _misbehave(self, request: GenerationRequest) -> None:
        options, token = self._spec.options, int(request.prompt.token_ids[0])
        if options.get("once") and request.attempt > 1:
            return
        if token == options.get("crash_token"):
            os.kill(os.getpid(), signal.SIGKILL)
        if token == options.get("hang_token"):
            os.kill(os.getpid(), signal.SIGSTOP)
        while token == options.get("stall_token") and request.request_id not in self._aborted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # aborts are a set, which nobody can wait for
        if token == options.get("lose_token"):
            raise WorkerDied("the engine's core is gone")
        if token == options.get("bug_token"):
            raise KeyError("a bug in the engine")
        if token == options.get("busy_token"):
            raise BackendUnavailable("no room").losing(3)


def create(spec: EngineSpec) -> FakeEngine:
    """The factory."""
    time.sleep(float(str(spec.options.get("build_s", 0.0))))
    return FakeEngine(spec)


def _load(folder: str) -> FloatArray:
    logits: FloatArray = np.load(Path(folder) / LOGITS, allow_pickle=False)
    return logits


def _filtered(row: FloatArray, top_k: int) -> FloatArray:
    """What is not among the `top_k` most likely tokens becomes impossible."""
    if not top_k:
        return row
    return np.where(row >= np.sort(row)[-top_k], row, np.float32(-np.inf))


def _log_softmax(row: FloatArray) -> npt.NDArray[np.float64]:
    shifted = row.astype(np.float64) - row.max()
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result
