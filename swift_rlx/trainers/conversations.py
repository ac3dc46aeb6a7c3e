"""Conversations of several turns as answers of a worker, run by ms-swift's multi-turn schedulers.

    scheduler.run(request)  --infer_async-->  TurnEngine  --generate-->  worker         once a turn

The tokens of all turns become one completion: what the environment added is not `sampled` and never trains, and every
sampled token keeps the log-prob and the policy version of its turn.
"""

import asyncio
from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from swift.infer_engine.protocol import (
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatMessage,
    UsageInfo,
)
from swift.rollout.multi_turn import GYMScheduler

from swift_rlx.backends import (
    Backend,
    Capabilities,
    GenerationRequest,
    Health,
    OnProgress,
    unwatched,
)
from swift_rlx.errors import BackendRejected, ConfigError
from swift_rlx.trainers.turns import Recorded, Turns
from swift_rlx.types import Completion, FinishReason, PolicyVersion


@dataclass
class _Conversation:
    """One conversation while it runs. `tokens_left`: None where each turn has the whole length."""

    request: GenerationRequest
    tokens_left: int | None
    turns: Turns
    is_aborted: bool = False

    @property
    def turn_id(self) -> str:
        return f"{self.request.request_id}/{len(self.turns.completions)}"


class _Aborted(Exception):
    """Ends ms-swift's scheduler after its worker was told to end the answer."""


_current: ContextVar[_Conversation] = ContextVar("conversation")


class TurnEngine:
    """What ms-swift's scheduler takes for its inference engine: each call is one turn of the current conversation."""

    def __init__(self, backend: Backend, encoder: Any) -> None:
        self.template = encoder.template
        self.tokenizer = encoder.template.tokenizer
        self._backend = backend
        self._encoder = encoder

    async def infer_async(
        self, infer_request: Any, request_config: Any = None, **_: Any
    ) -> ChatCompletionResponse:
        """One turn. Raises BackendError, and `_Aborted` where the conversation has been ended."""
        conversation = _current.get()
        if conversation.is_aborted:  # between two turns
            raise _Aborted
        first, turns = conversation.request, conversation.turns
        try:
            prompt = self._encoder.encode(infer_request, first.prompt.index, first.prompt.epoch, {})
        except ConfigError as error:  # what the environment said is of this conversation alone
            raise BackendRejected(str(error)) from error
        recorded = turns.begin(prompt.token_ids)
        if recorded is not None and recorded.finish_reason is not None:
            completion = _as_completion(recorded, first, self._backend.name)
        else:
            request = replace(
                first,
                request_id=conversation.turn_id,
                prompt=prompt,
                sampling=_sampling(conversation),
                submit_s=_now() if turns.completions else first.submit_s,
                prefix=None if recorded is None else recorded.part,
            )
            completion = await self._backend.generate(request, turns.tell)
        turns.end(completion, recorded)
        if conversation.is_aborted or completion.finish_reason is FinishReason.ABORT:
            raise _Aborted
        return self._response(completion)

    def _response(self, completion: Completion) -> ChatCompletionResponse:
        ids = completion.token_ids.tolist()
        content = [{"token": "", "logprob": value} for value in completion.logprobs.tolist()]
        choice = ChatCompletionResponseChoice(
            index=0,
            message=ChatMessage(role="assistant", content=self.template.decode_generate_ids(ids)),
            finish_reason=completion.finish_reason.value,
            logprobs={"content": content},
            token_ids=ids,
        )
        return ChatCompletionResponse(model="", choices=[choice], usage=UsageInfo(0, len(ids), len(ids)))


def _sampling(conversation: _Conversation) -> Any:
    """Another seed for each turn; the length that is left, at least one token."""
    sampling, turn = conversation.request.sampling, len(conversation.turns.completions)
    max_tokens = sampling.max_tokens
    if conversation.tokens_left is not None:
        max_tokens = max(1, conversation.tokens_left - conversation.turns.num_tokens)
    return replace(sampling, seed=(sampling.seed + 7919 * turn) % 2**31, max_tokens=max_tokens)


class ConversationBackend:
    """A worker whose completions are conversations.

    `scheduler`: ms-swift's, for this worker alone. `limit_is_total`: `max_tokens` is of all turns together.
    """

    def __init__(self, backend: Backend, scheduler: Any, encoder: Any, limit_is_total: bool = True) -> None:
        self._backend = backend
        self._scheduler = scheduler
        self._encoder = encoder
        self._limit_is_total = limit_is_total
        self._running: dict[str, _Conversation] = {}
        scheduler.infer_engine = TurnEngine(backend, encoder)
        # A tokenizer must not be used by two threads at once: not the trainer's.
        scheduler._template, scheduler._tokenizer = encoder.template, encoder.template.tokenizer

    @property
    def name(self) -> str:
        """The worker's."""
        return self._backend.name

    @property
    def capabilities(self) -> Capabilities:
        """The worker's."""
        return self._backend.capabilities

    async def generate(self, request: GenerationRequest, on_progress: OnProgress = unwatched) -> Completion:
        """The conversation that begins with the request's prompt. Raises BackendError.

        Raises ConfigError for a scheduler whose answers cannot be trained. After a failure the environment acts anew,
        and turns to which the same tokens lead are those of before.
        """
        limit = request.sampling.max_tokens if self._limit_is_total else None
        conversation = _Conversation(request, limit, Turns(request.prefix, on_progress))
        self._running[request.request_id] = conversation
        _current.set(conversation)
        infer_request = self._encoder.request(request.prompt, request.request_id)
        try:
            output = await self._scheduler.run(infer_request, self._encoder.request_config)
        except _Aborted:
            return _cut(conversation, self.name)
        finally:
            del self._running[request.request_id]
            await self._close_environment(infer_request)
        return self._completion(conversation, output)

    async def _close_environment(self, infer_request: Any) -> None:
        """ms-swift closes an environment that says it is done; not one of a conversation that ends otherwise."""
        if isinstance(self._scheduler, GYMScheduler):
            await self._scheduler._close_and_remove(infer_request.uuid)

    def _completion(self, conversation: _Conversation, output: Any) -> Completion:
        name = type(self._scheduler).__name__
        if isinstance(output, list):
            raise ConfigError(
                f"the multi-turn scheduler {name} returned {len(output)} rows for one prompt, which cannot be grouped;"
                " use one that returns one row"
            )
        if not output.response_token_ids:
            raise ConfigError(
                f"the multi-turn scheduler {name} returned no response_token_ids, without which the tokens that were"
                " sampled cannot be told from their text; return them from its `step`"
            )
        turns = msgspec.json.encode(
            {
                "messages": output.messages,
                "response_token_ids": output.response_token_ids,
                "response_loss_mask": output.response_loss_mask,
                "rollout_infos": output.rollout_infos,
                "rollout_logprobs": output.rollout_logprobs,
            }
        ).decode()
        return _joined(conversation, output.response_token_ids, output.response_loss_mask or None, turns)

    async def abort(self, request_ids: Collection[str]) -> None:
        """End these conversations in the turn that they are in."""
        found = [self._running[one] for one in request_ids if one in self._running]
        for conversation in found:
            conversation.is_aborted = True
        await self._backend.abort([conversation.turn_id for conversation in found])

    async def publish(self, version: PolicyVersion, payload: object) -> None:
        """The worker's."""
        await self._backend.publish(version, payload)

    async def health(self) -> Health:
        """The worker's."""
        return await self._backend.health()

    async def close(self) -> None:
        """The worker's."""
        await self._backend.close()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _as_completion(recorded: Recorded, first: GenerationRequest, worker: str) -> Completion:
    """A turn that an earlier attempt has finished."""
    part, reason = recorded.part, recorded.finish_reason
    assert reason is not None
    return Completion(
        token_ids=part.token_ids,
        logprobs=part.logprobs,
        policy_steps=part.policy_steps,
        finish_reason=reason,
        incarnation=part.incarnation,
        worker=worker,
        submit_s=first.submit_s,
        start_s=part.start_s,
        first_token_s=part.first_token_s,
        finish_s=_now(),
    )


def _cut(conversation: _Conversation, worker: str) -> Completion:
    """The sampled tokens of a conversation that was ended, without what the environment said between them."""
    made = conversation.turns.completions
    times = (made[0].start_s, made[0].first_token_s) if made else (_now(), _now())
    return Completion(
        token_ids=np.concatenate([np.zeros(0, np.int32), *(one.token_ids for one in made)]),
        logprobs=np.concatenate([np.zeros(0, np.float32), *(one.logprobs for one in made)]),
        policy_steps=np.concatenate([np.zeros(0, np.int32), *(one.policy_steps for one in made)]),
        finish_reason=FinishReason.ABORT,
        incarnation=made[0].incarnation if made else 0,
        worker=worker,
        submit_s=conversation.request.submit_s,
        start_s=times[0],
        first_token_s=times[1],
        finish_s=_now(),
    )


def _joined(
    conversation: _Conversation, ids: list[list[int]], masks: list[list[int]] | None, turns: str
) -> Completion:
    """One completion of all turns. Raises BackendRejected where a turn's log-probs are not one a sampled token."""
    made = conversation.turns.completions
    token_ids = np.asarray([token for turn in ids for token in turn], np.int32)
    sampled = (
        np.asarray([bit for turn in masks for bit in turn], bool) if masks else np.ones(len(token_ids), bool)
    )
    logprobs = np.concatenate([one.logprobs for one in made])
    steps = np.concatenate([one.policy_steps for one in made])
    if sampled.sum() != len(logprobs):
        raise BackendRejected(
            f"a conversation has {int(sampled.sum())} tokens to train on and {len(logprobs)} log-probs of sampled ones;"
            " the multi-turn scheduler changed an answer without saying so in response_loss_mask"
        )
    places = np.maximum(np.cumsum(sampled) - 1, 0)
    return Completion(
        token_ids=token_ids,
        logprobs=np.where(sampled, logprobs[places], 0.0).astype(np.float32),
        policy_steps=steps[places].astype(np.int32),
        finish_reason=made[-1].finish_reason,
        incarnation=made[0].incarnation,
        worker=made[-1].worker,
        submit_s=made[0].submit_s,
        start_s=made[0].start_s,
        first_token_s=made[0].first_token_s,
        finish_s=made[-1].finish_s,
        sampled=sampled,
        info={"turns": turns},
    )
