"""The rollout engine `vllm`: vLLM's asynchronous engine, in a worker process of ours.

Continuous batching, prefix caching, log-probs of the sampling that was used, and weights that change under answers in
flight (`vllm_weights.py`). An answer ends at the model's own end tokens, those of its generation config and tokenizer,
and where its sampling says. On a CPU and on GPUs; what differs is in `vllm_environment.py` and `vllm_arguments.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Awaitable, Collection
from typing import Any, TypeVar

import numpy as np

from swift_rlx.backends.answer_prefix import text_before, usable_prefix
from swift_rlx.backends.base import Capabilities, GenerationRequest, Health
from swift_rlx.backends.engine import Engine, EngineSpec
from swift_rlx.backends.progress import OnProgress, unwatched
from swift_rlx.backends.vllm_answer import (
    STREAM_TOKENS,
    STREAM_TOKENS_CPU,
    Answer,
    sampling_parameters,
    spans_so_far,
)
from swift_rlx.backends.vllm_arguments import EngineArguments, engine_arguments
from swift_rlx.backends.vllm_contract import check, installed_version, is_supported
from swift_rlx.backends.vllm_environment import environment
from swift_rlx.backends.vllm_processes import ProcessWatch, engine_processes
from swift_rlx.backends.vllm_weights import VllmWeights
from swift_rlx.backends.weights import WeightFiles
from swift_rlx.clock import LoopClock
from swift_rlx.errors import BackendError, BackendRejected, BackendUnavailable, ConfigError, WorkerDied
from swift_rlx.types import Completion, FloatArray, IntArray, PolicyVersion

Result = TypeVar("Result")
logger = logging.getLogger(__name__)

CLOSED = "it was closed"
CLOSE_S = 2.0
"""How long answers in flight may take to end after they were aborted, before the engine is closed."""


def create(spec: EngineSpec) -> Engine:
    """Start vLLM for `spec`; blocks for the 10 to 60 s that this takes. Entry point of `swift_rlx.backends`.

    Raises `ConfigError` for an option or a vLLM that cannot be used.
    """
    os.environ.update(environment(spec))  # before vLLM is imported: it reads most of them then
    if faults := check():
        raise ConfigError(f"the rollout backend 'vllm' cannot be used: {faults[0]}")
    installed = installed_version()
    if installed is not None and not is_supported(installed):
        logger.warning("vLLM %s was never tried with this package; it has all that is used", installed)
    from vllm.engine.arg_utils import AsyncEngineArgs

    arguments = engine_arguments(spec, {field.name for field in dataclasses.fields(AsyncEngineArgs)})
    return VllmEngine(spec, arguments)


def _start(spec: EngineSpec, arguments: EngineArguments) -> Any:
    from vllm.config import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from swift_rlx.backends.vllm_device_transfer import backend_of

    transfer = WeightTransferConfig(backend=backend_of(arguments.weight_transfer))
    try:
        given = AsyncEngineArgs(**arguments.vllm, weight_transfer_config=transfer)
        config = given.create_engine_config()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"vLLM refuses the engine for {spec.model}: {error}") from error
    if not spec.devices:
        _check_heads(config.model_config.get_head_size())
        # vLLM is imported in this process already; a forked one has it at once, a spawned one in 8 s. Not on a GPU,
        # whose driver does not survive a fork.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    return AsyncLLM.from_vllm_config(config, disable_log_stats=True)


def _check_heads(size: int) -> None:
    """vLLM finds out at the first token that it cannot, and ends."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if size not in sizes:
        raise ConfigError(
            f"vLLM on a CPU has no attention for heads of size {size}, only for {', '.join(map(str, sizes))}: use"
            " --rollout_backend transformers for this model"
        )


class VllmEngine:
    """An `Engine`. All calls come from one asyncio loop, which need not be that of the constructor."""

    def __init__(self, spec: EngineSpec, arguments: EngineArguments) -> None:
        self.name = spec.name
        pins = arguments.pins(spec)
        self.capabilities = Capabilities(keep=not pins, pin=pins, streams=True)
        self._stream_tokens = STREAM_TOKENS if spec.devices else STREAM_TOKENS_CPU
        self._clock = LoopClock()
        self._answers: dict[str, Answer] = {}
        self._collecting: dict[str, asyncio.Future[None]] = {}
        self._llm = _start(spec, arguments)
        self._weights = VllmWeights(self._llm, spec, arguments)
        self._publishing: asyncio.Lock | None = None
        self._beginning: asyncio.Future[None] | None = None
        self._watch: ProcessWatch | None = None
        self._num_scored = 0

    async def generate(self, request: GenerationRequest, on_progress: OnProgress = unwatched) -> Completion:
        """As `Backend.generate`. `WorkerDied`: vLLM has ended, this process has to end too."""
        if request.request_id in self._answers:
            raise BackendRejected(f"request '{request.request_id}' is refused: one of that id is in flight")
        answer = Answer(request, self._clock.now(), usable_prefix(request, self._decode))
        parameters = sampling_parameters(request, answer.num_kept, self._stream_tokens)
        if request.prompt.model_inputs:
            raise BackendRejected(
                f"request '{request.request_id}' has encoded inputs ({', '.join(request.prompt.model_inputs)}) beside"
                " its tokens, which the backend 'vllm' does not take: use --rollout_backend transformers"
            )
        self._answers[request.request_id] = answer
        try:
            await self._begin()
            collecting = self._collecting[request.request_id] = asyncio.ensure_future(
                self._collect(answer, parameters, on_progress)
            )
            await self._until_death(collecting)
        except BackendError as error:
            raise error.losing(len(answer.token_ids)) from error.__cause__
        finally:
            del self._answers[request.request_id]
            self._collecting.pop(request.request_id, None)
        return answer.completion(self.name, self._weights.version.incarnation, self._clock.now())

    async def _collect(self, answer: Answer, parameters: Any, on_progress: OnProgress) -> None:
        request_id = answer.request.request_id
        assert self._publishing is not None, "`_begin` comes first"
        async with self._publishing:  # an answer begins before new weights or under them
            answer.has_begun, answer.adapter, answer.pinned = (
                True,
                self._weights.adapter,
                self._weights.pinned,
            )
            stream = self._stream(text_before(answer.request, answer.prefix), parameters, request_id)
        async for output in stream:
            answer.add(output, self._clock.now())
            if output.finished:
                continue
            if answer.is_aborted:  # it was aborted before vLLM knew it
                await self._llm.abort(request_id)
            spans = spans_so_far(self._llm.output_processor, request_id)
            if spans is not None:
                answer.spans = spans
                on_progress(answer.news(self._weights.version.incarnation))

    def _decode(self, token_ids: list[int]) -> str:
        """As vLLM does where it looks for stop strings."""
        return str(self._llm.get_tokenizer().decode(token_ids, skip_special_tokens=True))

    def _stream(self, token_ids: IntArray, parameters: Any, request_id: str) -> Any:
        from vllm import TokensPrompt

        prompt = TokensPrompt(prompt_token_ids=token_ids.tolist())
        return self._llm.generate(prompt, parameters, request_id, lora_request=self._weights.adapter)

    async def abort(self, request_ids: Collection[str]) -> None:
        """As `Backend.abort`."""
        known = [request_id for request_id in request_ids if request_id in self._answers]
        for request_id in known:
            self._answers[request_id].is_aborted = True
        if known and self._watch is not None:
            await self._until_death(self._llm.abort(known))

    async def publish(self, version: PolicyVersion, payload: object) -> None:
        """As `Backend.publish`; `payload` is a `WeightFiles`, whose files may go when this has returned.

        Raises `BackendError` for weights that do not fit, the old ones still served.
        """
        if not isinstance(payload, WeightFiles):
            raise BackendError(
                f"engine '{self.name}' takes WeightFiles and was given {type(payload).__name__}"
            )
        await self._begin()
        assert self._publishing is not None, "`_begin` comes first"
        async with self._publishing:
            begun = [answer for answer in self._answers.values() if answer.has_begun]
            await self._until_death(self._weights.publish(version, payload, begun))

    async def logprobs(self, token_ids: IntArray) -> FloatArray:
        """As `Engine.logprobs`."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        await self._begin()
        parameters = SamplingParams(
            max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        self._num_scored += 1
        found: list[Any] = []

        async def score() -> None:
            async for output in self._stream(token_ids, parameters, f"logprobs-{self._num_scored}"):
                found.extend(output.prompt_logprobs)

        await self._until_death(score())
        pairs = zip(found[1:], token_ids[1:].tolist(), strict=True)
        return np.array([position[token].logprob for position, token in pairs], np.float32)

    async def health(self) -> Health:
        """As `Backend.health`. The question goes through vLLM's inner process, so it finds one that hangs."""
        await self._begin()
        await self._until_death(self._llm.is_paused())
        return Health(self._weights.version)

    async def close(self) -> None:
        """End vLLM's processes; answers in flight end with the tokens that they have."""
        if self._watch is not None and not self._watch.ended.done():
            await self.abort(list(self._answers))
            if self._collecting:
                await asyncio.wait(self._collecting.values(), timeout=CLOSE_S)
            self._watch.close()
            self._watch.ended.set_result(CLOSED)
        if self._llm.output_handler is not None:  # else it reports the end of the processes as a failure
            self._llm.output_handler.cancel()
        await asyncio.to_thread(self._llm.shutdown)

    async def _begin(self) -> None:
        """What needs a loop and is done once, before the first call."""
        if self._beginning is None:
            self._publishing = asyncio.Lock()
            self._watch = ProcessWatch(engine_processes())
            self._beginning = asyncio.ensure_future(self._weights.begin())
        await self._until_death(asyncio.shield(self._beginning))

    async def _until_death(self, call: Awaitable[Result]) -> Result:
        """The result of a call to vLLM; its errors are made ours, and a dead engine is an error at once."""
        assert self._watch is not None, "`_begin` comes first"
        task = asyncio.ensure_future(call)
        try:
            both: tuple[asyncio.Future[Any], ...] = (task, self._watch.ended)
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            return self._result(task)
        task.cancel()
        task.add_done_callback(_forget)
        raise self._death(self._watch.ended.result())

    def _result(self, task: asyncio.Future[Result]) -> Result:
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return task.result()
        except BackendError:
            raise
        except EngineDeadError as error:
            raise self._death("it reports its own end") from error
        except VLLMClientError as error:
            raise BackendRejected(f"vLLM refused a request to '{self.name}': {error}") from error
        except Exception as error:
            raise BackendUnavailable(
                f"vLLM failed in '{self.name}': {type(error).__name__}: {error}"
            ) from error

    def _death(self, cause: str) -> BackendError:
        if cause == CLOSED:
            return BackendUnavailable(f"engine '{self.name}' is closed")
        return WorkerDied(f"vLLM of engine '{self.name}' is gone: {cause}")


def _forget(task: asyncio.Future[Any]) -> None:
    """Take notice of how a call ended that nobody waits for."""
    if not task.cancelled():
        task.exception()
