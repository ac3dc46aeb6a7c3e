"""The engine `transformers`: any causal model that transformers can generate with, on any device.

The loop only checks and hands over; a thread of its own decodes (`transformers_decoder`). Weights are replaced in
place between two tokens, answers in flight go on under the new ones (`keep`), with their keys and values computed
anew. Log-probs are those of the distribution that a token was drawn from, temperature and filters included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from swift_rlx.backends.base import Capabilities, GenerationRequest, Health
from swift_rlx.backends.engine import Engine, EngineSpec
from swift_rlx.backends.progress import OnProgress, unwatched
from swift_rlx.backends.sampling_rules import sampling_fault
from swift_rlx.backends.transformers_answer import Answer
from swift_rlx.backends.transformers_decoder import Decoder
from swift_rlx.backends.transformers_loading import LoadedModel, load
from swift_rlx.backends.transformers_weights import ModelWeights
from swift_rlx.backends.weights import WeightFiles
from swift_rlx.errors import BackendError, BackendRejected, BackendUnavailable, WorkerDied
from swift_rlx.registry import one_line
from swift_rlx.types import Completion, FloatArray, IntArray, PolicyVersion, Prompt, SamplingParams

T = TypeVar("T")

MADE_HERE = {"input_ids", "inputs_embeds", "attention_mask", "position_ids", "past_key_values", "use_cache"}
"""Arguments of a forward that the engine makes itself."""


def create(spec: EngineSpec) -> Engine:
    """Load the model and start its thread. Raises `ConfigError` for a model that cannot be decoded."""
    return TransformersEngine(spec, load(spec))


class TransformersEngine:
    """An `Engine` on a loaded model. It has no options of its own."""

    def __init__(self, spec: EngineSpec, loaded: LoadedModel) -> None:
        self.name = spec.name
        self.capabilities = Capabilities(keep=True, streams=True)
        self._loaded = loaded
        self._weights = ModelWeights(loaded.model)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._futures: dict[object, asyncio.Future[Any]] = {}
        self._error: BackendError | None = None
        self._decoder = Decoder(
            loaded.model, spec.version, max_inflight=spec.max_inflight, on_fault=self._on_fault
        )

    async def generate(self, request: GenerationRequest, on_progress: OnProgress = unwatched) -> Completion:
        """The answer; it is cut to the length of the model. Raises `BackendRejected` for what cannot be decoded."""
        self._raise_if_broken()
        self._check_prompt(request.prompt)
        check_sampling(request.sampling)
        key = request.request_id
        if key in self._futures:
            raise BackendRejected(f"request '{key}' is refused: one of that id is in flight")
        future, deliver = self._future(key)
        answer = Answer(
            request,
            deliver,
            show=partial(_from_thread, asyncio.get_running_loop(), on_progress),
            limit=self._limit(request),
            ends=self._loaded.ends.union(request.sampling.stop_token_ids),
            says_stop=self._stop_strings(request.sampling.stop),
        )
        self._decoder.call(partial(self._decoder.submit, answer))
        try:
            completion: Completion = await future
            return completion
        except asyncio.CancelledError:
            self._decoder.call(partial(self._decoder.abort, (key,)))
            raise

    async def abort(self, request_ids: Collection[str]) -> None:
        """End these requests after the token that they are at; unknown ids are ignored."""
        self._decoder.call(partial(self._decoder.abort, frozenset(request_ids)))

    async def publish(self, version: PolicyVersion, payload: object) -> None:
        """Serve a `WeightFiles`; answers in flight go on under it.

        Raises `BackendRejected` where it does not fit, and `WorkerDied` where the weights are half of each now.
        """
        if not isinstance(payload, WeightFiles):
            raise BackendRejected(f"weights of type '{type(payload).__name__}' are refused: give WeightFiles")
        self._raise_if_broken()
        await self._call(partial(self._apply, version, payload))

    async def logprobs(self, token_ids: IntArray) -> FloatArray:
        """See `Engine`. Raises `BackendRejected` for fewer than two tokens, or too many."""
        self._raise_if_broken()
        self._check_prompt(Prompt(index=0, token_ids=token_ids))
        return await self._call(partial(self._forward, token_ids))

    async def health(self) -> Health:
        """The version that the model has, said by the thread between two tokens: so one that hangs is found.

        Raises `WorkerDied` where the model has none as a whole, or the thread has ended by a fault.
        """
        self._raise_if_broken()
        return Health(await self._call(lambda: self._decoder.version))

    async def close(self) -> None:
        """End the thread; requests in flight fail."""
        await asyncio.to_thread(self._decoder.close)

    def _apply(self, version: PolicyVersion, files: WeightFiles) -> None:
        try:
            self._weights.apply(files)
        except Exception as error:
            if not self._weights.is_torn:
                raise
            lost = WorkerDied(f"publish {version} failed midway with {one_line(error)}")
            self._decoder.fail_all(lost)  # no answer goes on under weights that are half of each
            raise lost from error
        self._decoder.restart(version)

    @torch.no_grad()
    def _forward(self, token_ids: IntArray) -> FloatArray:
        model = self._loaded.model
        ids = torch.tensor(token_ids, dtype=torch.long, device=model.device)[None]
        scores = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        found: FloatArray = scores.gather(1, ids[0, 1:, None].to(scores.device))[:, 0].cpu().numpy()
        return found

    def _future(self, key: object) -> tuple[asyncio.Future[Any], Callable[[object], None]]:
        """A future, and what settles it from the thread with a result or an error."""
        loop = self._loop = asyncio.get_running_loop()
        future = self._futures[key] = loop.create_future()
        future.add_done_callback(lambda _: self._futures.pop(key))
        return future, partial(_from_thread, loop, _settle, future)

    async def _call(self, function: Callable[[], T]) -> T:
        """The result of `function`, run by the thread between two tokens."""
        future, deliver = self._future(object())

        def run() -> None:
            try:
                deliver(function())
            except BackendError as error:
                deliver(error)
            except Exception as error:  # noqa: BLE001 - files and forwards raise what they like
                deliver(BackendUnavailable(f"engine '{self.name}': {one_line(error)}"))

        self._decoder.call(run)
        result: T = await future
        return result

    def _on_fault(self, error: BackendError) -> None:
        """Called from the thread at its end."""
        self._error = error
        if self._loop is not None:
            _from_thread(self._loop, self._fail_all)

    def _fail_all(self) -> None:
        for future in list(self._futures.values()):
            _settle(future, self._error)

    def _raise_if_broken(self) -> None:
        if self._error is not None:
            raise type(self._error)(f"engine '{self.name}' cannot serve: {self._error}")
        if self._weights.is_torn:
            raise WorkerDied(f"engine '{self.name}' cannot serve: a publish failed midway")

    def _check_prompt(self, prompt: Prompt) -> None:
        ids, limit = prompt.token_ids, self._loaded.max_length
        if not len(ids):
            raise BackendRejected(f"prompt {prompt.index} is refused: it has no token")
        if int(np.min(ids)) < 0 or int(np.max(ids)) >= self._loaded.vocabulary:
            raise BackendRejected(
                f"prompt {prompt.index} is refused: its ids go from {np.min(ids)} to {np.max(ids)},"
                f" and the model has 0 to {self._loaded.vocabulary - 1}"
            )
        if limit is not None and len(ids) >= limit:
            raise BackendRejected(
                f"prompt {prompt.index} is refused: it has {len(ids)} tokens and the model takes {limit}, the answer"
                " included; shorten it with --max_length, or raise --vllm_max_model_len"
            )
        if made := MADE_HERE & prompt.model_inputs.keys():
            raise BackendRejected(f"model inputs {sorted(made)} are refused: the engine makes these itself")

    def _limit(self, request: GenerationRequest) -> int:
        wanted, limit = request.sampling.max_tokens, self._loaded.max_length
        return wanted if limit is None else min(wanted, limit - len(request.prompt.token_ids))

    def _stop_strings(self, stop: tuple[str, ...]) -> Callable[[list[int]], bool]:
        """Whether the tokens so far end with one of these, or with the token that completes one."""
        tokenizer = self._loaded.tokenizer
        if not stop:
            return lambda tokens: False
        if tokenizer is None:
            raise BackendRejected(
                f"stop strings {list(stop)} are refused: the model's loader gave no tokenizer"
            )
        tail = max(len(each.encode()) for each in stop) + 4  # a token has a byte at least
        return lambda tokens: any(each in tokenizer.decode(tokens[-tail:]) for each in stop)


def check_sampling(sampling: SamplingParams) -> None:
    """Raises `BackendRejected` for numbers that make no distribution."""
    if (fault := sampling_fault(sampling)) is not None:
        raise BackendRejected(fault)


def _from_thread(
    loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object
) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *arguments)


def _settle(future: asyncio.Future[Any], result: object) -> None:
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)
