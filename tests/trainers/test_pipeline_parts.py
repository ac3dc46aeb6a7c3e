"""The pipeline without a training: what its end tells the trainer, and what its monitor counts as an answer."""

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from swift_rlx.backends import GenerationRequest
from swift_rlx.errors import SchedulingError
from swift_rlx.scheduler import RolloutConfig
from swift_rlx.testing import FakeBackend
from swift_rlx.testing.virtual_clock import run_virtual
from swift_rlx.trainers import crew
from swift_rlx.trainers.async_rollout import AsyncRolloutMixin
from swift_rlx.trainers.conversations import ConversationBackend
from swift_rlx.trainers.pipeline import RolloutPipeline
from swift_rlx.types import PolicyVersion, Prompt, SamplingParams

BROKEN = SchedulingError("3 prompts were admitted, but 2 trained")


class Training:
    """In the place of ms-swift's trainer."""

    error: BaseException | None = None

    def train(self) -> str:
        if self.error is not None:
            raise self.error
        return "trained"


class Trainer(AsyncRolloutMixin, Training):
    """Made without a model."""


def trainer(failure: BaseException | None, error: BaseException | None = None) -> Trainer:
    made = object.__new__(Trainer)
    made.error = error
    made.reward_crew = SimpleNamespace(close=lambda: None)
    made.pipeline = object.__new__(RolloutPipeline)
    made.pipeline.thread = SimpleNamespace(failure=failure)
    made.pipeline.weights = SimpleNamespace(remove=lambda: None)
    made.pipeline._open = ExitStack()
    return made


def test_a_law_that_is_found_broken_at_the_end_is_the_error_of_the_training() -> None:
    assert trainer(None).train() == "trained"
    with pytest.raises(SchedulingError, match="3 prompts were admitted"):
        trainer(BROKEN).train()


def test_what_the_training_ended_with_comes_before_a_broken_law() -> None:
    with pytest.raises(KeyboardInterrupt):
        trainer(BROKEN, KeyboardInterrupt()).train()


class ThreeTurns:
    """A multi-turn scheduler as ms-swift's: each turn asks its engine."""

    infer_engine: Any = None

    async def run(self, infer_request: Any, request_config: Any) -> Any:
        answers = [await self.infer_engine.infer_async(infer_request, request_config) for _ in range(3)]
        ids = [answer.choices[0].token_ids for answer in answers]
        facts: dict[str, Any] = {"messages": [], "rollout_infos": {}, "rollout_logprobs": []}
        return SimpleNamespace(response_token_ids=ids, response_loss_mask=[], **facts)


class Worker(FakeBackend):
    """One second and ten tokens for an answer."""

    async def start(self) -> None:
        """Nothing to start."""


def test_a_conversation_counts_once_in_the_monitor_and_from_its_first_turn_to_its_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = []
    monkeypatch.setattr(crew, "WorkerProcess", lambda spec, name, **_: Worker(name))
    template = SimpleNamespace(tokenizer=None, decode_generate_ids=lambda ids: "said")
    prompt = Prompt(0, np.zeros(3, np.int32))
    encoder = SimpleNamespace(
        template=template, request_config=None, request=lambda *_: None, encode=lambda *_: prompt
    )
    pipeline = object.__new__(RolloutPipeline)
    pipeline.plan = SimpleNamespace(
        config=RolloutConfig(batch_groups=1),
        crew=crew.ProcessCrew(specs=(None,), environments=({},), run_directory=None),
        version=PolicyVersion(),
    )
    pipeline._first = None
    pipeline._wrap = lambda backend: ConversationBackend(backend, ThreeTurns(), encoder)
    pipeline._monitor = SimpleNamespace(
        completion=lambda completion, label: counted.append(completion), published=lambda *_: None
    )

    async def talk() -> None:
        (backend,) = await pipeline._make_backends()
        await asyncio.sleep(5.0)
        await backend.generate(GenerationRequest("0", prompt, 0, SamplingParams(), submit_s=5.0))

    run_virtual(talk())
    (completion,) = counted
    assert completion.num_sampled == 30
    assert completion.finish_s - completion.submit_s == pytest.approx(3.0)
