"""The rules. Each gives a text a number from 0 (broken) to 1 (kept), whatever its language and script."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import regex

PATTERN_LIMIT_S = 1.0
"""For one pattern on one text."""
# Scripts that put no space between words: a listed word counts wherever it stands.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"


class OutOfTime(Exception):
    """A pattern took too long on this text."""


class Rule(Protocol):
    """Raises `OutOfTime` where the text cannot be judged in time."""

    def score(self, text: str) -> float: ...


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _words(words: Sequence[str]) -> list[regex.Pattern[str]]:
    """A pattern for each word: whole words where the script has spaces, letter case and width aside."""
    if not words or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError(f"a list of words holds at least one, and none that is blank; got {words!r}")
    inside = rf"[\w--[{_UNSPACED}]]"
    return [
        regex.compile(
            rf"(?V1)(?<!{inside}(?={inside})){regex.escape(_folded(word))}(?!(?<={inside}){inside})"
        )
        for word in words
    ]


@dataclass(frozen=True)
class Contains:
    """The share of these words that occur; with `any_of`, 1 if one does."""

    words: Sequence[str]
    any_of: bool = False
    _patterns: list[regex.Pattern[str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_patterns", _words(self.words))

    def score(self, text: str) -> float:
        folded = _folded(text)
        found = [pattern.search(folded) is not None for pattern in self._patterns]
        return float(any(found)) if self.any_of else sum(found) / len(found)


@dataclass(frozen=True)
class Forbids:
    """1 if none of these words occurs, else 0."""

    words: Sequence[str]
    _patterns: list[regex.Pattern[str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_patterns", _words(self.words))

    def score(self, text: str) -> float:
        folded = _folded(text)
        return float(all(pattern.search(folded) is None for pattern in self._patterns))


@dataclass(frozen=True)
class Matches:
    """1 if the pattern is found (with `whole`: if it is the whole text, space around it aside), else 0.

    The syntax is that of the package `regex`, which has all of `re`'s.
    """

    pattern: str
    whole: bool = False
    _compiled: regex.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "_compiled", regex.compile(self.pattern))
        except regex.error as error:
            raise ValueError(f"{self.pattern!r} is no pattern: {error}") from None

    def score(self, text: str) -> float:
        search = self._compiled.fullmatch if self.whole else self._compiled.search
        try:
            found = search(text.strip() if self.whole else text, timeout=PATTERN_LIMIT_S)
        except TimeoutError:
            raise OutOfTime(f"the pattern {self.pattern!r} took longer than {PATTERN_LIMIT_S:g} s") from None
        return float(found is not None)


@dataclass(frozen=True)
class Length:
    """1 from `low` to `high` characters without surrounding space, falling to 0 over `softness` times the bound."""

    low: int = 1
    high: int = 1000
    softness: float = 0.5

    def __post_init__(self) -> None:
        if not (0 <= self.low <= self.high and self.high >= 1 and self.softness >= 0):
            raise ValueError(
                f"length is 0 <= low <= high, high >= 1, softness >= 0; got {self.low}, {self.high}, {self.softness}"
            )

    def score(self, text: str) -> float:
        length = len(text.strip())
        missed = max(self.low - length, length - self.high, 0)
        width = self.softness * (self.low if length < self.low else self.high)
        return 1.0 if missed == 0 else max(0.0, 1 - missed / width) if width else 0.0


@dataclass(frozen=True)
class ValidJson:
    """1 if the text, a Markdown fence around it aside, is JSON, an object with these keys where any are named."""

    keys: Sequence[str] = ()

    def score(self, text: str) -> float:
        body = text.strip()
        if body.startswith("```") and body.endswith("```") and "\n" in body:
            body = body.partition("\n")[2].removesuffix("```")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            return 0.0
        return float(not self.keys or (isinstance(found, dict) and all(key in found for key in self.keys)))


@dataclass(frozen=True)
class NoRepetition:
    """1 up to a share `tolerance` of character n-grams that occurred before, then falling to 0; blanks are one space.

    Characters and not words: Chinese, Japanese or Thai do not separate words.
    """

    size: int = 10
    tolerance: float = 0.2

    def __post_init__(self) -> None:
        if not (self.size >= 1 and 0 <= self.tolerance < 1):
            raise ValueError(f"size is >= 1 and tolerance in [0, 1); got {self.size}, {self.tolerance}")

    def score(self, text: str) -> float:
        text = " ".join(text.split())
        total = len(text) - self.size + 1
        if len(text) < 2 * self.size:
            return 1.0
        fresh = len({text[at : at + self.size] for at in range(total)}) / total
        return min(1.0, fresh / (1 - self.tolerance))
