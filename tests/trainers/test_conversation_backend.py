"""Conversations that are cut, fail or cannot be trained; a worker that is only pretended gives the turns."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from swift.infer_engine.protocol import RolloutInferRequest
from swift.rollout.multi_turn import GYMScheduler, MultiTurnScheduler

from swift_rlx.backends import GenerationRequest
from swift_rlx.errors import BackendRejected, ConfigError
from swift_rlx.trainers.conversations import ConversationBackend
from swift_rlx.types import Completion, FinishReason, Prompt, SamplingParams

WAIT_S = 30.0
REQUEST = GenerationRequest("one", Prompt(0, np.zeros(1, np.int32)), 0, SamplingParams(max_tokens=50))


class Encoder:
    """Turns are the text of their ids."""

    request_config = None
    template = SimpleNamespace(
        tokenizer=SimpleNamespace(decode=lambda ids, **_: bytes(ids).decode()),
        decode_generate_ids=lambda ids: bytes(ids).decode(),
        _get_response_prefix=lambda inputs: "",
    )

    def request(self, prompt: Prompt, request_id: str) -> RolloutInferRequest:
        return RolloutInferRequest(messages=[{"role": "user", "content": "go on"}], uuid=request_id)

    def encode(self, request: Any, index: int, epoch: int, row: dict[str, Any]) -> Prompt:
        return Prompt(index, np.zeros(1, np.int32), epoch)


class Worker:
    """Each turn is "ab", by itself or when `go` is set; an abort comes too late to cut it."""

    name = "worker-0"
    capabilities = None

    def __init__(self, error: Exception | None = None) -> None:
        self.turns = 0
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.waits = False
        self.error = error

    async def generate(self, request: GenerationRequest, on_progress: Any = None) -> Completion:
        self.turns += 1
        self.begun.set()
        if self.waits:
            await self.go.wait()
        if self.error is not None:
            raise self.error
        ids, zeros = np.frombuffer(b"ab", np.uint8).astype(np.int32), np.zeros(2)
        return Completion(ids, zeros.astype(np.float32), zeros.astype(np.int32), FinishReason.STOP)

    async def abort(self, request_ids: Any) -> None:
        """Too late."""


class Twice(MultiTurnScheduler):
    """Two turns, between which `between` is awaited."""

    between: Callable[[], Any] | None = None

    async def on_turn_end(self, infer_request: Any, choice: Any, turn: int) -> dict[str, Any]:
        if self.between is not None:
            await self.between()
        return {"done": turn >= 2}

    def step(self, infer_request: Any, choice: Any, turn: int) -> dict[str, Any]:
        infer_request.messages.append({"role": "user", "content": "again"})
        return {"infer_request": infer_request}


class Room:
    """An environment that says after how many steps it is done, and how often it was closed."""

    closed = 0

    def __init__(self, done_after: int) -> None:
        self.left = done_after

    async def reset(self, request: Any) -> tuple[str, dict[str, Any], str]:
        return "look around", {}, ""

    async def step(self, messages: Any) -> tuple[str, float, bool, dict[str, Any]]:
        self.left -= 1
        return "and again", 1.0, self.left <= 0, {}

    async def close(self) -> None:
        Room.closed += 1


def rooms(done_after: int) -> GYMScheduler:
    scheduler = GYMScheduler(max_turns=2)
    scheduler._create_env = lambda config: Room(done_after)
    return scheduler


def run(work: Callable[[Worker], Any], worker: Callable[[], Worker] = Worker) -> Any:
    async def main() -> Any:
        return await asyncio.wait_for(work(worker()), WAIT_S)

    return asyncio.run(main())


@pytest.fixture(autouse=True)
def no_room_was_closed() -> None:
    Room.closed = 0


def test_a_conversation_of_two_turns_is_one_answer() -> None:
    answer = run(lambda worker: ConversationBackend(worker, Twice(), Encoder()).generate(REQUEST))
    assert bytes(answer.token_ids.tolist()) == b"abab"
    assert answer.finish_reason is FinishReason.STOP
    assert '"num_turns":2' in answer.info["turns"]


def test_one_that_is_ended_while_a_turn_ends_by_itself_is_cut() -> None:
    async def work(worker: Worker) -> Completion:
        worker.waits = True
        backend = ConversationBackend(worker, Twice(), Encoder())
        answer = asyncio.ensure_future(backend.generate(REQUEST))
        await worker.begun.wait()
        await backend.abort([REQUEST.request_id])
        worker.go.set()
        return await answer

    answer = run(work)
    assert answer.finish_reason is FinishReason.ABORT, "half a conversation is no answer"
    assert answer.num_sampled == 2
    assert not answer.info


def test_one_that_is_ended_between_two_turns_makes_no_further_turn() -> None:
    async def work(worker: Worker) -> tuple[Completion, int]:
        scheduler = Twice()
        backend = ConversationBackend(worker, scheduler, Encoder())
        scheduler.between = lambda: backend.abort([REQUEST.request_id])
        return await backend.generate(REQUEST), worker.turns

    answer, turns = run(work)
    assert answer.finish_reason is FinishReason.ABORT
    assert (turns, answer.num_sampled) == (1, 2)


def test_one_that_is_ended_before_its_first_turn_has_no_tokens() -> None:
    class Late(Twice):
        async def on_trajectory_start(self, requests: Any) -> None:
            await self.between()

    async def work(worker: Worker) -> tuple[Completion, int]:
        scheduler = Late()
        backend = ConversationBackend(worker, scheduler, Encoder())
        scheduler.between = lambda: backend.abort([REQUEST.request_id])
        return await backend.generate(REQUEST), worker.turns

    answer, turns = run(work)
    assert answer.finish_reason is FinishReason.ABORT
    assert (turns, answer.num_sampled) == (0, 0)


@pytest.mark.parametrize("done_after", [2, 9], ids=["done", "the turns are over"])
def test_an_environment_is_closed_once_its_conversation_has_ended(done_after: int) -> None:
    scheduler = rooms(done_after)
    answer = run(lambda worker: ConversationBackend(worker, scheduler, Encoder()).generate(REQUEST))
    assert answer.finish_reason is FinishReason.STOP
    assert '"total_reward":2.0' in answer.info["turns"]
    assert Room.closed == 1
    assert not scheduler._envs


@pytest.mark.parametrize("how", ["cut", "failed", "given up"])
def test_an_environment_is_closed_however_its_conversation_ends(how: str) -> None:
    scheduler = rooms(done_after=9)

    async def work(worker: Worker) -> None:
        worker.waits = True
        backend = ConversationBackend(worker, scheduler, Encoder())
        answer = asyncio.ensure_future(backend.generate(REQUEST))
        await worker.begun.wait()
        if how == "given up":
            answer.cancel()
        elif how == "failed":
            worker.error = BackendRejected("too long")
        else:
            await backend.abort([REQUEST.request_id])
        worker.go.set()
        await asyncio.wait([answer])

    run(work)
    assert Room.closed == 1
    assert not scheduler._envs


def test_a_scheduler_that_returns_several_rows_is_a_mistake_and_no_failed_answer() -> None:
    class Branching(Twice):
        async def run(self, *args: Any, **kwargs: Any) -> Any:
            output = await super().run(*args, **kwargs)
            return [output, output]

    with pytest.raises(
        ConfigError, match="the multi-turn scheduler Branching returned 2 rows for one prompt"
    ):
        run(lambda worker: ConversationBackend(worker, Branching(), Encoder()).generate(REQUEST))


def test_what_an_environment_says_and_cannot_be_encoded_costs_one_answer() -> None:
    class Picky(Encoder):
        def encode(self, request: Any, index: int, epoch: int, row: dict[str, Any]) -> Prompt:
            if len(request.messages) > 1:
                raise ConfigError("row 0 is refused: it cannot be encoded")
            return super().encode(request, index, epoch, row)

    with pytest.raises(BackendRejected, match="cannot be encoded"):
        run(lambda worker: ConversationBackend(worker, Twice(), Picky()).generate(REQUEST))


def test_the_copied_scheduler_uses_the_tokenizer_of_its_thread() -> None:
    scheduler, encoder = Twice(tokenizer="the trainer's", template="the trainer's"), Encoder()
    run(lambda worker: ConversationBackend(worker, scheduler, encoder).generate(REQUEST))
    assert scheduler.tokenizer is encoder.template.tokenizer
    assert scheduler._template is encoder.template
