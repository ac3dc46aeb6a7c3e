"""Scorers of groups without a trainer, and groups that they scored."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from swift_rlx.integration.reward_names import described_rewards
from swift_rlx.rewards import OnError
from swift_rlx.rewards.version_watch import VersionWatch
from swift_rlx.trainers.group_scoring import GroupScorer
from swift_rlx.trainers.reward_crew import RewardCrew
from swift_rlx.trainers.spread_filter import SpreadFilter
from swift_rlx.types import (
    Completion,
    FinishReason,
    Prompt,
    Score,
    TrainGroup,
    Trajectory,
    TrajectoryGroup,
)

ROW = {"messages": [{"role": "user", "content": "What is 6 x 7?"}], "solution": "42"}


class Encoder:
    """Answers are the text of their token ids."""

    def sample(self, row: dict[str, Any]) -> Any:
        sample = SimpleNamespace(messages=list(row["messages"]), row=row, prompt_id="", request_id="")
        sample.to_reward_row = lambda: {
            **row, "messages": sample.messages, "prompt_id": sample.prompt_id, "request_id": sample.request_id
        }  # fmt: skip
        return sample

    def answer(self, sample: Any, token_ids: list[int], *_: Any) -> Any:
        sample.messages = [*sample.messages, {"role": "assistant", "content": bytes(token_ids).decode()}]
        return sample


def completion(text: str) -> Completion:
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    zeros = np.zeros(len(ids))
    return Completion(ids, zeros.astype(np.float32), zeros.astype(np.int32), FinishReason.STOP)


ANSWERS = [completion("The answer is $\\boxed{42}$"), completion("The answer is $\\boxed{41}$")]


@contextmanager
def group_scorers() -> Iterator[Callable[..., GroupScorer]]:
    """What makes scorers whose rewards run in this process; ended in the end."""
    crews: list[RewardCrew] = []

    def make(
        *rewards: Any,
        policy: str = "raise",
        spread: SpreadFilter | None = None,
        versions: VersionWatch | None = None,
    ) -> GroupScorer:
        described = [
            replace(one, origin=None) for one in described_rewards(list(rewards), None)
        ]  # in a thread
        crews.append(RewardCrew(described, on_error=OnError.parse(policy)))
        crews[-1].watch()
        return GroupScorer(crews[-1].rewards, Encoder(), None, spread, versions=versions)

    yield make
    for crew in crews:
        crew.close()


def score(scorer: GroupScorer, prompt: int = 0) -> list[Score]:
    """As the pipeline does it: in the loop of another thread."""
    return asyncio.run(asyncio.to_thread(lambda: asyncio.run(scored_beside(scorer, prompt))))


async def scored_beside(scorer: GroupScorer, prompt: int) -> list[Score]:
    return await asyncio.wait_for(scorer(Prompt(prompt, np.zeros(1, np.int32), columns=ROW), ANSWERS), 60)


def scored_group(scorer: GroupScorer, prompt: int) -> TrainGroup:
    asked = Prompt(prompt, np.zeros(1, np.int32), columns=ROW)
    members = tuple(
        Trajectory(asked, at, answer, one)
        for at, (answer, one) in enumerate(zip(ANSWERS, score(scorer, prompt), strict=True))
    )
    return TrainGroup(TrajectoryGroup(asked, prompt, members), tuple(np.ones(3, bool) for _ in members))
