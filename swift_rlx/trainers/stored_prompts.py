"""Whether the answers of a store were made behind the prompts that this run makes of the same messages.

A stored prompt is encoded again from its messages, with the template, the tokenizer and the system prompt of this run.
Where that gives other tokens than its answers were made behind, their log-probs are not those of one text, and the
importance weights take the difference for a drift of the policy.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from swift.utils import get_logger

from swift_rlx.store import Snapshot
from swift_rlx.store.group_facts import group_facts
from swift_rlx.trainers.prompt_encoding import PromptEncoder
from swift_rlx.types import IntArray, Prompt

logger = get_logger()
EncodePrompt = Callable[[Prompt], IntArray]
"""Token ids that this run makes of the columns of a prompt."""


def encoding_of(trainer: Any) -> EncodePrompt:
    """As the trainer encodes the prompts of its data for the workers."""
    encoder = PromptEncoder(trainer.template, trainer.sample_cls, trainer.request_config)

    def encode(prompt: Prompt) -> IntArray:
        return encoder.prompt(dict(prompt.columns), prompt.index, prompt.epoch).token_ids

    return encode


def warn_of_other_prompts(snapshot: Snapshot, encode: EncodePrompt) -> list[str]:
    """The writers whose first group has a prompt that is encoded otherwise here, after a warning that names them."""
    facts = group_facts(snapshot)
    numbers, first_groups = np.unique(facts.writer_G, return_index=True)
    others = [
        facts.writers[number]
        for number, group in zip(numbers.tolist(), first_groups.tolist(), strict=True)
        if _differs(snapshot.group(group).group.prompt, encode)
    ]
    if others:
        logger.warning(
            f"the store '{snapshot.url}' has answers, of {', '.join(others)}, that were made behind other tokens than"
            " this run makes of their prompts: their importance weights are of two different texts; use the template"
            " and the --system that they were made with, or train on them alone, with --dataset"
        )
    return others


def _differs(prompt: Prompt, encode: EncodePrompt) -> bool:
    """Without messages it cannot train, which is said when it is picked."""
    return bool(prompt.columns.get("messages")) and not np.array_equal(encode(prompt), prompt.token_ids)
