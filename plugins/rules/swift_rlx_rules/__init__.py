"""A reward of rules: word lists, patterns, length, format, repetition; each from 0 to 1, weighted into one number."""

from swift_rlx_rules.reward import Rules, RulesFromFile, read_rules
from swift_rlx_rules.rules import (
    Contains,
    Forbids,
    Length,
    Matches,
    NoRepetition,
    OutOfTime,
    ValidJson,
)

__all__ = [
    "Contains",
    "Forbids",
    "Length",
    "Matches",
    "NoRepetition",
    "OutOfTime",
    "Rules",
    "RulesFromFile",
    "ValidJson",
    "read_rules",
]
