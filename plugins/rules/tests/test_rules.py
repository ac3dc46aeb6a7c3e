import json
import time

import pytest
from swift_rlx_rules import (
    Contains,
    Forbids,
    Length,
    Matches,
    NoRepetition,
    Rules,
    RulesFromFile,
    ValidJson,
    read_rules,
    rules,
)

from swift_rlx.testing import Example, check_reward


def test_it_keeps_the_rules_of_a_reward():
    check_reward(
        Rules([(Length(1, 50), 1), (NoRepetition(), 1), (Forbids(["sorry"]), 2)]),
        examples=[
            Example("It is.", expected=1.0),
            Example("Sorry, no.", expected=0.5),
            Example("", {}, expected=0.75),
        ],
    )


@pytest.mark.parametrize(
    ("word", "text", "is_there"),
    [
        ("art", "the art of it", True), ("art", "the start of it", False), ("art", "ART!", True),
        ("art", "artful", False), ("对不起", "我很对不起你", True), ("对不起", "没关系", False),
        ("ＡＢＣ", "abc", True), ("straße", "STRASSE", True), ("c++", "in C++ it is", True), ("AI", "用AI写的", True),
        ("ai", "rain", False), ("ขอโทษ", "ฉันขอโทษนะ", True), ("два слова", "вот два слова тут", True),
    ],
)  # fmt: skip
def test_words_are_found_as_whole_words_in_scripts_that_have_spaces(word, text, is_there):
    assert Contains([word]).score(text) == float(is_there)
    assert Forbids([word]).score(text) == float(not is_there)


def test_the_share_of_the_wanted_words_counts_or_any_of_them():
    assert Contains(["one", "two", "three", "four"]).score("four and one") == 0.5
    assert Contains(["one", "two"], any_of=True).score("two") == 1.0
    assert Contains(["one", "two"], any_of=True).score("three") == 0.0


def test_a_pattern_is_found_or_is_the_whole_text():
    assert Matches(r"\d+").score("it is 42.") == 1.0
    assert Matches(r"\d+", whole=True).score("it is 42.") == 0.0
    assert Matches(r"\d+", whole=True).score(" 42\n") == 1.0


def test_a_pattern_that_takes_too_long_leaves_the_row_unscored(monkeypatch):
    monkeypatch.setattr(rules, "PATTERN_LIMIT_S", 0.05)
    start = time.monotonic()
    assert Rules([(Matches(r"(?:a|aa|a?)+(?:b|c)+$"), 1)])("a" * 4000 + "d") is None
    assert time.monotonic() - start < 20


def test_length_has_soft_edges():
    rule = Length(10, 20, softness=0.5)
    assert [rule.score("x" * n) for n in (5, 7, 10, 20, 25, 30)] == pytest.approx([0, 0.4, 1, 1, 0.5, 0])
    assert [Length(3, 5, softness=0).score("x" * n) for n in (2, 3, 5, 6)] == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"a": 1}', 1),
        ('```json\n{"a": 1}\n```', 1),
        ('{"b": 1}', 0),
        ("[1]", 0),
        ("{", 0),
        ("", 0),
        ("[" * 100_000, 0),
    ],
)
def test_json_is_an_object_with_the_keys(text, score):
    assert ValidJson(["a"]).score(text) == score


@pytest.mark.parametrize("phrase", ["I think so. ", "我认为是这样的。", "นี่คือประโยคเดียวกัน "])
def test_repetition_is_noticed_in_every_script(phrase):
    assert NoRepetition().score(phrase * 50) < 0.2
    assert NoRepetition().score(phrase) == 1.0


def test_the_row_brings_rules_of_its_own():
    reward = Rules()
    assert reward("a b", must_contain=["a", "c"]) == 0.5
    assert reward("a b", must_contain=["a"], must_not_contain=["b"]) == 0.5
    assert reward("a b", pattern="^a") == 1.0
    assert reward("a b") is None
    assert reward("a b", must_contain=None, must_not_contain=[], pattern="") is None


def test_rules_come_from_a_file(tmp_path, monkeypatch):
    file = tmp_path / "rules.json"
    file.write_text(
        json.dumps(
            [{"rule": "length", "high": 3, "softness": 0, "weight": 3}, {"rule": "matches", "pattern": "b"}]
        )
    )
    monkeypatch.setenv("SWIFT_RLX_RULES_FILE", str(file))
    assert [RulesFromFile()(text) for text in ("ab", "aaaa", "aaab", "a")] == [1.0, 0.0, 0.25, 0.75]
    monkeypatch.delenv("SWIFT_RLX_RULES_FILE")
    assert RulesFromFile()("ab") is None


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "[1]", '[{"rule": "mood"}]', '[{"rule": "length", "low": 5, "high": 4}]',
     '[{"rule": "length", "lowest": 5}]', '[{"rule": "matches", "pattern": "("}]',
     '[{"rule": "contains", "words": []}]',
     '[{"rule": "contains", "words": [" "]}]', '[{"rule": "no_repetition", "tolerance": 1}]',
     '[{"rule": "length", "weight": "heavy"}]'],
)  # fmt: skip
def test_a_file_that_is_wrong_is_an_error_that_names_it(tmp_path, text):
    file = tmp_path / "rules.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"rules\.json"):
        read_rules(file)


def test_a_weight_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="weights are positive"):
        Rules([(Length(), 0)])
