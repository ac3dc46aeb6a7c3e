"""What ends an answer: of a template of ms-swift, and of the user."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AnswerEnds:
    """An answer ends with one of these texts, or of these tokens."""

    texts: tuple[str, ...]
    token_ids: tuple[int, ...]


def answer_ends(template: Any, words: Iterable[str | list[int]]) -> AnswerEnds:
    """The template's stop words, its tokenizer's token of the end, and `words`, each as a text or as token ids.

    What is a single token is one of the `token_ids`.
    """
    tokenizer = template.tokenizer
    ids = {tokenizer.eos_token_id} - {None}
    texts = []
    for word in [*words, *template.template_meta.stop_words]:
        tokens = tokenizer.encode(word, add_special_tokens=False) if isinstance(word, str) else word
        if tokens and len(tokens) == 1:
            ids.add(tokens[0])
        elif tokens:
            texts.append(word if isinstance(word, str) else tokenizer.decode(word))
    return AnswerEnds(tuple(texts), tuple(sorted(ids)))
