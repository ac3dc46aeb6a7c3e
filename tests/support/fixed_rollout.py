"""An external plugin for tests: completions and rewards as functions of prompt and position in the group.

Nothing is sampled, so that one process and two ranks train on equal data. The data set has the column `row`.
"""

from typing import Any

from swift.rewards import orms
from swift.rlhf_trainers import GRPOTrainer

PROMPTS_PER_STEP = 3
GROUP_SIZE = 4
ROWS_PER_RANK = PROMPTS_PER_STEP * GROUP_SIZE // 2


def generate_completions(self: Any, samples: list[Any]) -> list[Any]:
    """In the place of `GRPOTrainer._generate_completions`; groups may cross from one rank to the next."""
    first = self.accelerator.process_index * len(samples)
    for position, sample in enumerate(self._preprocess_inputs(samples), start=first):
        row, index = sample.extra["row"], position % self.num_generations
        text = f"{row} {index} " + "one two three "[: (5 * row + 3 * index) % 14]
        sample.messages.append({"role": "assistant", "content": text})
        sample.response_token_ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        sample.finish_reason, sample.add_eos = "stop", False
    return samples


class UnevenlyScored:
    """All rows of step 1; not the second rank's odd ones in step 2; none of the second rank's in step 3."""

    def __init__(self, args: Any = None, **_: Any) -> None:
        pass

    def __call__(self, completions: list[str], row: list[int], **_: Any) -> list[float | None]:
        indices = [int(text.split()[1]) for text in completions]
        return [self.score(number, index) for number, index in zip(row, indices, strict=True)]

    @staticmethod
    def score(row: int, index: int) -> float | None:
        step, prompt = divmod(row, PROMPTS_PER_STEP)
        on_second_rank = prompt * GROUP_SIZE + index >= ROWS_PER_RANK
        if on_second_rank and (step == 2 or (step == 1 and index % 2)):
            return None
        return ((7 * row + 5 * index) % 11) / 4.0


def install() -> None:
    GRPOTrainer._generate_completions = generate_completions
    orms["unevenly_scored"] = UnevenlyScored


install()
