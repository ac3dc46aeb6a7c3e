"""What the flags of the constraint filter mean, and the sentences for what they cannot mean."""

import sys

import pytest

from swift_rlx.algorithms.offline import Limits, chinese_entities, pattern_entities
from swift_rlx.algorithms.offline.constraint_settings import ConstraintPlan, constraint_plan
from swift_rlx.errors import ConfigError


def test_the_flags_say_what_is_judged_and_what_becomes_of_it():
    assert constraint_plan("none", None) is None
    assert constraint_plan("reject", None) == ConstraintPlan()
    assert constraint_plan("reject", "{}").penalty is None
    found = constraint_plan(
        "penalty:0.25",
        '{"constraints": ["length", "words"], "lengths": [0.5, 2], "min_overlap": 0.1, "quantile": 0.9}',
    )
    assert found == ConstraintPlan(0.25, ("words", "length"), Limits((0.5, 2.0), 0.1), 0.9, pattern_entities)


def test_names_in_chinese_need_their_package_before_anything_is_loaded(monkeypatch):
    settings = '{"entities": "chinese"}'
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(ConfigError, match="names in Chinese texts need the package rjieba"):
        constraint_plan("reject", settings)
    unused = '{"entities": "chinese", "constraints": ["words"]}'
    assert constraint_plan("reject", unused).extractor is chinese_entities


@pytest.mark.parametrize(
    ("use", "settings", "message"),
    [
        ("drop", None, r"--constraint_filter drop is refused: it is none, reject, or penalty:X"),
        ("penalty", None, r"--constraint_filter penalty is refused"),
        ("penalty:0", None, r"--constraint_filter penalty:0 is refused"),
        ("penalty:x", None, r"--constraint_filter penalty:x is refused"),
        ("none", "{}", r"--constraint_settings \{\} has no effect without --constraint_filter"),
        ("reject", "lengths", r"--constraint_settings lengths is refused: it is a JSON object"),
        ("reject", '{"length": 1}', r"the setting 'length' of --constraint_settings is refused: it has"),
        ("reject", '{"constraints": []}', r"is refused: it is a list of some of words, length, entities"),
        ("reject", '{"constraints": ["sense"]}', r"is refused: it is a list of some of words"),
        ("reject", '{"lengths": [1]}', r"'\{\"lengths\": \[1\]\}' is refused: it is a list of two numbers"),
        ("reject", '{"lengths": [2, 1]}', r"constraint limits with lengths \(2.0, 1.0\)"),
        ("reject", '{"min_overlap": true}', r"is refused: it is a share under 1"),
        ("reject", '{"quantile": 0}', r"is refused: it is a share above 0 and at most 1"),
        ("reject", '{"entities": "spacy"}', r"is refused: it is one of patterns, chinese"),
        ("reject", '{"entities": ["patterns"]}', r"is refused: it is one of patterns, chinese"),
    ],
)
def test_what_cannot_be_meant_is_refused(use, settings, message):
    with pytest.raises(ConfigError, match=message):
        constraint_plan(use, settings)
