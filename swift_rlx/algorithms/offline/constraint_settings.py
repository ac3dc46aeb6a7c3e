"""What a user may say of the constraint filter, as plain values.

--constraint_filter reject                 or penalty:0.5
--constraint_settings '{"constraints": ["words", "length"], "lengths": [0.5, 2]}'
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from swift_rlx.errors import ConfigError

from .constraint_filter import CONSTRAINTS, Limits
from .entities import Extractor, chinese_entities, pattern_entities

EXTRACTORS: dict[str, Extractor] = {"patterns": pattern_entities, "chinese": chinese_entities}
SETTINGS = ("constraints", "lengths", "min_overlap", "quantile", "entities")


@dataclass(frozen=True, slots=True)
class ConstraintPlan:
    """`penalty`: what a reward loses for each constraint that does not hold; None: such completions are rejected.

    `quantile`: share of the data's own completions whose words pass. `extractor`: what finds entities in a text.
    """

    penalty: float | None = None
    constraints: tuple[str, ...] = CONSTRAINTS
    limits: Limits = field(default_factory=Limits)
    quantile: float = 0.95
    extractor: Extractor = pattern_entities


def constraint_plan(use: str, settings: str | None) -> ConstraintPlan | None:
    """The plan of `--constraint_filter` and `--constraint_settings`; None for `none`.

    Raises:
        ConfigError: another word, a setting that is not known or not allowed, or settings without a filter.
    """
    penalty = _penalty(use)
    if use == "none":
        if settings is not None:
            raise ConfigError(
                f"--constraint_settings {settings} has no effect without --constraint_filter reject or penalty:X; drop"
                " it, or add one"
            )
        return None
    given = _settings(settings)
    defaults = ConstraintPlan()
    name = given.get("entities", "patterns")
    if not isinstance(name, str) or name not in EXTRACTORS:
        raise _refused("entities", name, f"it is one of {', '.join(EXTRACTORS)}")
    plan = ConstraintPlan(
        penalty,
        _constraints(given.get("constraints", [*CONSTRAINTS])),
        _limits(given, defaults.limits),
        _number(given, "quantile", defaults.quantile, "it is a share above 0 and at most 1"),
        EXTRACTORS[name],
    )
    if not 0 < plan.quantile <= 1:
        raise _refused("quantile", plan.quantile, "it is a share above 0 and at most 1")
    if "entities" in plan.constraints:
        plan.extractor("")  # raises where the package that it needs is not installed
    return plan


def _penalty(use: str) -> float | None:
    word, is_there, number = use.partition(":")
    if use in ("none", "reject"):
        return None
    try:
        penalty = float(number) if word == "penalty" and is_there else math.nan
    except ValueError:
        penalty = math.nan
    if not 0 < penalty < math.inf:
        raise ConfigError(
            f"--constraint_filter {use} is refused: it is none, reject, or penalty:X with what a reward loses for each"
            " constraint that does not hold, such as penalty:0.5"
        )
    return penalty


def _settings(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        found = error
    if not isinstance(found, dict):
        raise ConfigError(
            f"--constraint_settings {text} is refused: it is a JSON object of settings by name, such as"
            " '{\"lengths\": [0.5, 2]}'"
        )
    if unknown := [name for name in found if name not in SETTINGS]:
        raise ConfigError(
            f"the setting '{unknown[0]}' of --constraint_settings is refused: it has {', '.join(SETTINGS)}"
        )
    return found


def _constraints(given: Any) -> tuple[str, ...]:
    is_fit = isinstance(given, list) and bool(given) and all(one in CONSTRAINTS for one in given)
    if not is_fit:
        raise _refused("constraints", given, f"it is a list of some of {', '.join(CONSTRAINTS)}")
    return tuple(name for name in CONSTRAINTS if name in given)


def _limits(given: dict[str, Any], defaults: Limits) -> Limits:
    lengths = given.get("lengths", [*defaults.lengths])
    if not (isinstance(lengths, list) and len(lengths) == 2 and all(map(_is_number, lengths))):
        raise _refused("lengths", lengths, "it is a list of two numbers, such as [0.8, 1.2]")
    overlap = _number(given, "min_overlap", defaults.min_overlap, "it is a share under 1")
    return Limits((float(lengths[0]), float(lengths[1])), overlap)


def _number(given: dict[str, Any], name: str, default: float, what: str) -> float:
    value = given.get(name, default)
    if not _is_number(value):
        raise _refused(name, value, what)
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _refused(name: str, value: Any, what: str) -> ConfigError:
    return ConfigError(f"--constraint_settings '{json.dumps({name: value})}' is refused: {what}")
