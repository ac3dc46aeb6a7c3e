"""Reward models as ms-swift loads and asks them, for reward services: a loader that is given by its dotted path."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from swift import get_model_processor, get_template
from swift.utils import to_device

MAX_ROWS = 16
"""Conversations in one forward pass."""


def load(
    model_dir: str, *, model_type: str | None = None, template: str | None = None, dtype: str | None = None
) -> Callable[[Sequence[Any], Mapping[str, list[Any]]], list[float]]:
    """A function that scores conversations, with the tokenizer and the template of the reward model itself.

    It reads the column `messages`, which ends with the completion, as ms-swift gives it to rewards. `model_type`,
    `template`, `dtype`: as ms-swift's options of these names; None: found out from the model's files.
    """
    model, processor = get_model_processor(
        model_dir,
        torch_dtype=None if dtype is None else getattr(torch, dtype),
        model_type=model_type,
        task_type="seq_cls",
        num_labels=1,
    )
    model.requires_grad_(False).eval()
    encoder = get_template(processor, template_type=template)
    encoder.set_mode("train")
    encoder.max_length = None

    def score(completions: Sequence[Any], columns: Mapping[str, list[Any]]) -> list[float]:
        scores: list[float] = []
        for begin in range(0, len(completions), MAX_ROWS):
            messages = columns["messages"][begin : begin + MAX_ROWS]
            encoded = [encoder.encode({"messages": deepcopy(one)}) for one in messages]
            inputs = to_device(encoder.data_collator(encoded), model.device)
            with torch.inference_mode():
                scores += model(**inputs).logits[:, 0].float().tolist()
        return scores

    return score
