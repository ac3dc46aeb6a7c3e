"""Groups are scored beside the training, and a reward that cannot be is left to the main thread."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from swift_rlx.errors import ConfigError, RewardError
from swift_rlx.integration.reward_names import build_rewards
from swift_rlx.trainers import group_scoring
from swift_rlx.trainers.group_scoring import GroupScorer
from swift_rlx.trainers.spread_filter import SpreadFilter
from swift_rlx.types import Completion, FinishReason, Prompt, Score

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


@pytest.fixture
def scorer() -> Iterator[Callable[..., GroupScorer]]:
    made: list[GroupScorer] = []

    def make(*rewards: Any, policy: str = "raise", spread: SpreadFilter | None = None) -> GroupScorer:
        built = build_rewards(list(rewards), SimpleNamespace(reward_on_error=policy))
        made.append(GroupScorer(built, Encoder(), None, spread))
        return made[-1]

    yield make
    for one in made:
        one.close()


def score(scorer: GroupScorer, prompt: int = 0) -> list[Score]:
    """As the pipeline does it: in the loop of another thread."""
    with scorer.watching():
        return asyncio.run(asyncio.to_thread(lambda: asyncio.run(_score(scorer, prompt))))


async def _score(scorer: GroupScorer, prompt: int) -> list[Score]:
    return await asyncio.wait_for(scorer(Prompt(prompt, np.zeros(1, np.int32), columns=ROW), ANSWERS), 60)


def values(scores: list[Score]) -> list[list[float | None]]:
    return [[part.value for part in one.breakdown] for one in scores]


def verified(completions: list[str], solution: list[str], **_: Any) -> list[float]:
    """As ms-swift's `accuracy`: math-verify limits its time by an alarm."""
    from math_verify import parse, verify

    return [
        float(verify(parse(right), parse(text))) for text, right in zip(completions, solution, strict=True)
    ]


def length(completion: str, **_: Any) -> float:
    return float(len(completion))


def broken(completion: str, **_: Any) -> float:
    raise RuntimeError("no verdict today")


def test_accuracy_is_left_to_the_main_thread_from_the_start(scorer: Callable[..., GroupScorer]) -> None:
    both = scorer("accuracy", length)
    assert both.late == {0}
    scores = score(both)
    assert values(scores) == [[26.0], [26.0]]
    assert [one.reward for one in scores] == [0.0, 0.0], "the reward comes in later"


@pytest.mark.parametrize("policy", ["raise", "none", "value:0"])
def test_a_reward_that_needs_an_alarm_is_late_from_its_first_call_on(
    policy: str, scorer: Callable[..., GroupScorer]
) -> None:
    both = scorer(verified, length, policy=policy)
    assert both.late == set()
    scores = score(both)
    assert both.late == {0}
    assert values(scores) == [[26.0], [26.0]]
    assert both.take_failures() == {"length": 0}, "it did not fail"
    score(both)
    assert both.late == {0}


def test_dynamic_sampling_with_a_reward_that_turns_out_late_ends_in_one_sentence(
    scorer: Callable[..., GroupScorer],
) -> None:
    one = scorer(verified, spread=SpreadFilter(torch.ones(1), limit=4))
    with pytest.raises(
        ConfigError, match=r"^--dynamic_sample true .* with verified, .* use --async_rollout false$"
    ):
        score(one)


def test_a_failing_reward_is_an_error_or_counted(scorer: Callable[..., GroupScorer]) -> None:
    with pytest.raises(RewardError, match="no verdict today"):
        score(scorer(broken))
    counting = scorer(broken, length, policy="none")
    assert values(score(counting)) == [[None, 26.0], [None, 26.0]]
    score(counting)
    assert counting.take_failures() == {"broken": 4, "length": 0}
    assert counting.take_failures() == {}


def test_rewards_see_ids_that_tell_answers_apart(scorer: Callable[..., GroupScorer]) -> None:
    seen: list[tuple[str, str]] = []

    def noting(completion: str, prompt_id: str, request_id: str, **_: Any) -> float:
        seen.append((prompt_id, request_id))
        return 1.0

    one = scorer(noting)
    score(one, prompt=3)
    score(one, prompt=3)  # generated again
    assert {prompt_id for prompt_id, _ in seen} == {"prompt_0_3"}
    assert len({request_id for _, request_id in seen}) == 4


def test_a_reward_that_groups_wait_for_is_named_once_in_a_while(
    scorer: Callable[..., GroupScorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            told_twice.set()

    async def slow(completion: str, **_: Any) -> float:
        await told_twice.wait()
        return 1.0

    async def main() -> None:
        one = scorer(slow)
        await asyncio.gather(*(_score(one, prompt) for prompt in range(8)))

    told_twice = asyncio.Event()
    monkeypatch.setattr(group_scoring, "SAY_EVERY_S", 0.05)
    monkeypatch.setattr(group_scoring.logger, "warning", say)
    asyncio.run(main())
    assert len(said) < 8, "once for all the groups"
    assert all("for the reward slow" in line for line in said)
