"""Text of logged answers as token ids, and back, as ms-swift's template of a model makes them in training."""

from typing import Any

import numpy as np

from swift_rlx.errors import ConfigError
from swift_rlx.integration.message_encoding import encoded, template_of
from swift_rlx.types import IntArray


class LogEncoder:
    """`model`: id or directory, of which only the tokenizer is loaded. Raises ConfigError where that fails.

    `hub`: what ms-swift's `get_processor` takes beside it, such as `use_hf`.
    """

    def __init__(self, model: str, template: str | None = None, **hub: Any) -> None:
        self._template = template_of(model, template, **hub)

    def prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        """The prompt up to where the answer begins. Raises ConfigError for what cannot be encoded."""
        return self._encoded(messages, "transformers")

    def answer(self, messages: list[dict[str, Any]], text: str) -> list[int]:
        """The answer with what ends it in training: the tokens behind the prompt of the whole conversation."""
        answer = {"role": "assistant", "content": text}
        whole = self._encoded([*messages, answer], "train")
        prompt = self.prompt(messages)
        if whole[: len(prompt)] != prompt or len(whole) == len(prompt):
            raise ConfigError(
                f"the answer {text[:60]!r} is refused: the template makes other tokens of its prompt with it than"
                " without it; import token ids instead of text"
            )
        return whole[len(prompt) :]

    def decode(self, ids: IntArray) -> str:
        """Text without the tokens that only end an answer."""
        return str(self._template.tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=True))

    def _encoded(self, messages: list[dict[str, Any]], mode: str) -> list[int]:
        self._template.set_mode(mode)
        return encoded(self._template, messages)
