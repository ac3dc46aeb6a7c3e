"""The reward, and the file that its rules are read from."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swift_rlx_rules.rules import (
    Contains,
    Forbids,
    Length,
    Matches,
    NoRepetition,
    OutOfTime,
    Rule,
    ValidJson,
)

FILE_VARIABLE = "SWIFT_RLX_RULES_FILE"
KINDS: dict[str, type[Any]] = {
    "contains": Contains,
    "forbids": Forbids,
    "matches": Matches,
    "length": Length,
    "json": ValidJson,
    "no_repetition": NoRepetition,
}


class Rules:
    """The weighted mean of what the rules give, from 0 to 1.

    rules: pairs of a rule and its weight, which is positive. A list `must_contain` or `must_not_contain`, or a
    `pattern`, in the row of the data set is one rule more, with weight 1. None where a pattern takes too long on the
    text, or there is no rule at all for it. Raises ValueError for a weight that is not positive.
    """

    def __init__(self, rules: Sequence[tuple[Rule, float]] = ()) -> None:
        if not all(weight > 0 for _, weight in rules):
            raise ValueError(f"weights are positive; got {[weight for _, weight in rules]}")
        self._rules = tuple(rules)

    def __call__(
        self,
        completion: str,
        *,
        must_contain: Sequence[str] | None = None,
        must_not_contain: Sequence[str] | None = None,
        pattern: str | None = None,
        **columns: object,
    ) -> float | None:
        rules = list(self._rules)
        if must_contain:
            rules.append((Contains(must_contain), 1.0))
        if must_not_contain:
            rules.append((Forbids(must_not_contain), 1.0))
        if pattern:
            rules.append((Matches(pattern), 1.0))
        try:
            scores = [(rule.score(completion), weight) for rule, weight in rules]
        except OutOfTime:
            return None
        total = sum(weight for _, weight in scores)
        return sum(score * weight for score, weight in scores) / total if total else None


class RulesFromFile(Rules):
    """With the rules of the file that `SWIFT_RLX_RULES_FILE` names; without it, those of the rows alone."""

    def __init__(self) -> None:
        path = os.environ.get(FILE_VARIABLE)
        super().__init__(read_rules(Path(path)) if path else ())


def read_rules(path: Path) -> list[tuple[Rule, float]]:
    """Rules and weights of a JSON file: `[{"rule": "length", "high": 200, "weight": 2}, ...]`.

    Raises ValueError, which names the file and the rule.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"the rules in {path} cannot be read: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path} holds no list of rules")
    return [_rule(path, number, entry) for number, entry in enumerate(entries)]


def _rule(path: Path, number: int, entry: Any) -> tuple[Rule, float]:
    if not isinstance(entry, dict) or entry.get("rule") not in KINDS:
        raise ValueError(f'rule {number} of {path} is {entry!r}: it needs "rule", one of {", ".join(KINDS)}')
    options = {key: value for key, value in entry.items() if key not in ("rule", "weight")}
    try:
        return KINDS[entry["rule"]](**options), float(entry.get("weight", 1))
    except (TypeError, ValueError) as error:
        raise ValueError(f"rule {number} of {path} is refused: {error}") from error
