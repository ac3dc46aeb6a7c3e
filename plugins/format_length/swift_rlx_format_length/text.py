"""Properties of a text that hold in any script. All take time linear in its length."""

import unicodedata
from typing import NamedTuple

OPEN, CLOSE = "<think>", "</think>"

# What ends a sentence: Latin, Armenian, Arabic and Urdu, Devanagari, Burmese, Ethiopic, Khmer,
# Mongolian, Tibetan, Chinese and Japanese (full and half width), and the doubled marks.
_TERMINATORS = frozenset(".!?…։؟۔।॥။።፧។៕᠃᠉།༎。！？｡．‼⁇⁈⁉‽")
# The Greek question mark looks like a semicolon and is mostly typed as one, so it counts behind Greek only.
_GREEK_QUESTION_MARKS = frozenset(";\u037e")
# Thai and Lao put no mark at the end of a sentence.
_UNMARKED_SCRIPTS = ("THAI", "LAO")
# May follow the mark: closing brackets and quotes, and what closes emphasis in Markdown.
_CLOSING_CATEGORIES = frozenset({"Pe", "Pf", "Pi"})
_CLOSING = frozenset("\"'*_~`」』】》")


class Parts(NamedTuple):
    """thinking: None where there is no thinking block. answer: what follows it."""

    thinking: str | None
    answer: str


def split_thinking(text: str) -> Parts | None:
    """Thinking block and answer; None where the tags are out of order, doubled, or never closed.

    Many chat templates put `<think>` into the prompt, so that a completion holds only the closing tag:
    "a</think>b" is well-formed.
    """
    opened, closed = text.count(OPEN), text.count(CLOSE)
    if not opened and not closed:
        return Parts(None, text)
    before, _, answer = text.partition(CLOSE)
    before = before.lstrip()
    if closed != 1 or opened > 1 or (opened and not before.startswith(OPEN)) or not answer.strip():
        return None
    return Parts(before.removeprefix(OPEN), answer)


def ends_like_a_sentence(text: str) -> bool:
    """Whether the last thing that is neither space nor closing quote or bracket ends a sentence in its
    script."""
    end = len(text)
    while end and _may_follow_a_mark(text[end - 1]):
        end -= 1
    last, before = text[end - 1 : end], text[: end - 1].rstrip()[-1:]
    if last in _GREEK_QUESTION_MARKS:
        return _script(before).startswith("GREEK")
    return last in _TERMINATORS or _script(last).startswith(_UNMARKED_SCRIPTS)


def _may_follow_a_mark(character: str) -> bool:
    category = unicodedata.category(character)
    return character.isspace() or character in _CLOSING or category in _CLOSING_CATEGORIES


def _script(character: str) -> str:
    return unicodedata.name(character, "") if character else ""


def repeated_share(text: str, size: int) -> float:
    """Share of the text's character n-grams that occurred before, from 0 (none) to almost 1 (all but the
    first).

    Characters and not words, because Chinese, Japanese or Thai do not separate words. Runs of white space
    count as one space. 0 for a text of less than two n-grams' length.
    """
    text = " ".join(text.split())
    total = len(text) - size + 1
    if len(text) < 2 * size:
        return 0.0
    return 1 - len({text[start : start + size] for start in range(total)}) / total
