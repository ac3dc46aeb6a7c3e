"""Names, numbers and addresses in a text, found by patterns: an approximation, not named-entity recognition.

`pattern_entities` needs no dictionary: it finds runs of capitalized words, numbers, dates, e-mail addresses and URLs,
joins neighboring names and misses what is written small. It finds no names in Chinese; `chinese_entities` does, with
the tagger `rjieba`. Any function from a text to its entities can stand in their place.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable

from swift_rlx.errors import ConfigError

Extractor = Callable[[str], Iterable[str]]

_PATTERNS = re.compile(
    r"""
    (?P<url> https?://[^\s<>"']+ )
    | (?P<mail> [\w.+-]+@[\w-]+(?:\.[\w-]+)+ )
    | (?P<number> \d+(?:[.,:/-]\d+)* )
    | (?P<name> (?<![.!?]\s)(?<!^)\b[A-Z][\w'-]*(?:\s+[A-Z][\w'-]*)* )
    | (?P<first> \b[A-Z][\w'-]*(?:\s+[A-Z][\w'-]*)+ | \b[A-Z]{2,}\b )
    """,
    re.VERBOSE,
)
_CHINESE_TAGS = frozenset({"nr", "nrt", "ns", "nt", "nz"})


def pattern_entities(text: str) -> set[str]:
    """Normalized entities of a text. The first word of a sentence counts only within a longer name or in capitals."""
    return normalized_entities(match.group().rstrip(".,;:!?)") for match in _PATTERNS.finditer(text))


def chinese_entities(text: str) -> set[str]:
    """Names of persons, places, organizations and others by `rjieba`, and what the patterns find.

    Raises:
        ConfigError: `rjieba` is not installed.
    """
    try:
        import rjieba
    except ImportError as error:
        raise ConfigError(
            "names in Chinese texts need the package rjieba, which is not installed; pip install rjieba, or give a"
            " function of your own"
        ) from error
    tagged = [word for word, tag in rjieba.tag(text) if tag in _CHINESE_TAGS]
    return normalized_entities(tagged) | pattern_entities(text)


def normalized_entities(found: Iterable[str]) -> set[str]:
    """NFKC, case-folded and stripped; what is empty then is left out."""
    return {name for one in found if (name := unicodedata.normalize("NFKC", one).casefold().strip())}


def overlap(found: set[str], wanted: set[str]) -> float | None:
    """Share of the wanted entities that were found; None where none is wanted."""
    return len(found & wanted) / len(wanted) if wanted else None
