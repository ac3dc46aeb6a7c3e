"""What the judge is told, and what its words mean."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from typing import Any

WORST, BEST = 0, 10
LABELS = ("A", "B")


class NoGrade(ValueError):
    """The judge said something else than grades."""


def prompt(template: str, question: str, answers: Sequence[str]) -> str:
    """The template with `$question`, `$answers` and `$format` filled in; foreign text as JSON strings."""
    keys = ", ".join(f'"grade_{label.lower()}": 0' for label, _ in zip(LABELS, answers, strict=False))
    listed = [f"Answer {label}: {_quoted(text)}" for label, text in zip(LABELS, answers, strict=False)]
    return string.Template(template).safe_substitute(
        question=_quoted(question), answers="\n".join(listed), format=f'{{"thoughts": "", {keys}}}'
    )


def schema(num_answers: int) -> dict[str, Any]:
    """JSON schema of the reply, for servers that can hold a model to one."""
    grade = {"type": "integer", "minimum": WORST, "maximum": BEST}
    properties = {"thoughts": {"type": "string"}} | {
        f"grade_{one.lower()}": grade for one in LABELS[:num_answers]
    }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def read_grades(text: str, num_answers: int) -> list[float]:
    """The grades, from the last JSON object of the text that has all of them. Raises `NoGrade`."""
    keys = [f"grade_{label.lower()}" for label in LABELS[:num_answers]]
    decoder = json.JSONDecoder()
    at = len(text)
    while (at := text.rfind("{", 0, at)) >= 0:
        try:
            found, _ = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            continue
        if all(key in found for key in keys):
            return [_grade(found[key]) for key in keys]
    raise NoGrade(f"no JSON object with {', '.join(keys)} in {text[:200]!r}")


def _grade(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not WORST <= value <= BEST:
        raise NoGrade(f"{value!r} is no grade from {WORST} to {BEST}")
    return float(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
