"""Groups as a run of a real size makes them: random token ids, and text that compresses about as English does."""

from __future__ import annotations

import numpy as np

from swift_rlx.store import StoredGroup
from swift_rlx.types import (
    Completion,
    FinishReason,
    Prompt,
    RewardPart,
    SamplingParams,
    Score,
    Trajectory,
    TrajectoryGroup,
)

VOCABULARY, TOKENS, PROMPT_TOKENS, SHORT_TOKENS, GROUP = 151_000, 250, 60, 16, 4
WORDS_PER_TOKEN = 0.8
ROUND_GROUPS = 1000


class Words:
    """Text of 20,000 invented words whose frequencies follow Zipf's law: no easier to compress than English.

    A word has the length and about the letters of an English one, but words do not follow from those before them.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        shares = np.array([3, 10, 15, 17, 14, 12, 11, 9, 6, 3]) / 100
        sizes = self._random.choice(np.arange(1, 11), 20_000, p=shares)
        weights = 1 / np.arange(1, 27) ** 0.7
        letters = self._random.choice(
            list("etaoinshrdlcumwfgypbvkjxqz"), sizes.sum(), p=weights / weights.sum()
        )
        self._words = ["".join(part) for part in np.split(letters, np.cumsum(sizes)[:-1])]
        shares = np.cumsum(1 / np.arange(1, 20_001))
        self._shares = shares / shares[-1]

    def text(self, count: int) -> str:
        """That many words."""
        drawn = np.searchsorted(self._shares, self._random.random(count), "right")
        return " ".join(self._words[at] for at in drawn.tolist())


def written_group(number: int, words: Words, numbers: np.random.Generator) -> StoredGroup:
    """Four answers of 200 to 300 tokens to a prompt of 60, with text, two rewards and sampling parameters."""
    columns = {"messages": [{"role": "user", "content": words.text(50)}], "solution": str(number)}
    prompt = Prompt(number, numbers.integers(0, VOCABULARY, PROMPT_TOKENS, np.int32), columns=columns)
    members = tuple(_member(prompt, member, numbers) for member in range(GROUP))
    return StoredGroup(
        TrajectoryGroup(prompt, number, members),
        tuple(words.text(int(WORDS_PER_TOKEN * one.completion.num_tokens)) for one in members),
        tuple(SamplingParams(temperature=0.9, seed=member) for member in range(GROUP)),
        "vllm 0.32",
    )


def short_group(number: int, numbers: np.random.Generator) -> StoredGroup:
    """Four answers of 16 tokens to a prompt of 8, without text."""
    prompt = Prompt(number, numbers.integers(0, VOCABULARY, 8, np.int32))
    steps = np.zeros(SHORT_TOKENS, np.int32)

    def member(place: int) -> Trajectory:
        tokens = numbers.integers(0, VOCABULARY, SHORT_TOKENS, np.int32)
        logprobs = -numbers.exponential(0.7, SHORT_TOKENS).astype(np.float32)
        reward = float(numbers.random())
        score = Score(reward, (RewardPart("accuracy", reward, "1.0"),))
        return Trajectory(prompt, place, Completion(tokens, logprobs, steps, FinishReason.STOP), score)

    return StoredGroup(TrajectoryGroup(prompt, number, tuple(map(member, range(GROUP)))))


def _member(prompt: Prompt, member: int, numbers: np.random.Generator) -> Trajectory:
    tokens = int(numbers.integers(TOKENS - 50, TOKENS + 51))
    start_s = prompt.index * 0.1
    completion = Completion(
        token_ids=numbers.integers(0, VOCABULARY, tokens, np.int32),
        logprobs=-numbers.exponential(0.7, tokens).astype(np.float32),
        policy_steps=np.full(tokens, prompt.index // ROUND_GROUPS, np.int32),
        finish_reason=FinishReason.STOP,
        worker="worker-0",
        submit_s=start_s,
        finish_s=start_s + 2.5,
    )
    reward = float(numbers.random())
    parts = (RewardPart("accuracy", reward, "1.0"), RewardPart("length", 0.5, "0.1"))
    return Trajectory(prompt, member, completion, Score(reward, parts), start_s + 2.6)
