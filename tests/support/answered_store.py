"""A store of answers that the tiny llama could have given: groups of several sizes, token ids below its vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from swift_rlx.store import StoredGroup, TrajectoryStore
from swift_rlx.types import Completion, FinishReason, Prompt, RewardPart, Score, Trajectory, TrajectoryGroup

END = 2
"""The token that ends an answer."""


def answered_group(
    number: int,
    members: int = 4,
    *,
    rewards: tuple[float | None, ...] | None = None,
    with_logprobs: bool = True,
    sampled: tuple[bool, ...] | None = None,
    tokens: int | None = None,
) -> StoredGroup:
    """Answers of three to seven tokens, rewards that differ; drawn from `number` alone."""
    numbers = np.random.default_rng(number)
    messages = [{"role": "user", "content": f"Say {number}"}]
    prompt = Prompt(number, numbers.integers(10, 290, 6, np.int32), columns={"messages": messages})
    given = rewards or tuple(numbers.permutation(members).astype(float).tolist())
    return StoredGroup(
        TrajectoryGroup(
            prompt,
            number,
            tuple(
                Trajectory(
                    prompt,
                    member,
                    _answer(numbers, with_logprobs, sampled, tokens),
                    Score(reward, () if reward is None else (RewardPart("length", reward, "1"),)),
                )
                for member, reward in enumerate(given)
            ),
        )
    )


def _answer(
    numbers: np.random.Generator, with_logprobs: bool, sampled: tuple[bool, ...] | None, tokens: int | None
) -> Completion:
    count = (tokens or int(numbers.integers(3, 8))) if sampled is None else len(sampled)
    ids = numbers.integers(10, 290, count, np.int32)
    ids[-1] = END
    logprobs = -numbers.exponential(3.0, count).astype(np.float32) - 2
    return Completion(
        token_ids=ids,
        logprobs=logprobs if with_logprobs else np.full(count, np.nan, np.float32),
        policy_steps=np.zeros(count, np.int32),
        finish_reason=FinishReason.STOP,
        sampled=None if sampled is None else np.array(sampled),
    )


def answered_store(
    directory: Path, groups: int = 12, name: str = "a", first: int = 0, **options: object
) -> Path:
    """A store of `groups` groups."""
    store = TrajectoryStore.create(directory)
    with store.writer(name) as writer:
        writer.add([answered_group(number, **options) for number in range(first, first + groups)])  # type: ignore[arg-type]
        writer.seal()
    return directory
