"""Names, numbers and addresses found by patterns, and names in Chinese by a tagger."""

import sys
from types import SimpleNamespace

import pytest

from swift_rlx.algorithms.offline import chinese_entities, normalized_entities, overlap, pattern_entities
from swift_rlx.errors import ConfigError

SENTENCE = "张伟在北京的清华大学学习。"
TAGGED = [
    ("张伟", "nr"),
    ("在", "p"),
    ("北京", "ns"),
    ("的", "uj"),
    ("清华大学", "nt"),
    ("学习", "v"),
    ("。", "x"),
]
"""What rjieba 0.2.2 gives for the sentence; `tests/support/offline_peer_values.py` asks it."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yesterday we met Ada Lovelace in London.", {"ada lovelace", "london"}),
        ("The price is 1,299.50 on 2024-05-01.", {"1,299.50", "2024-05-01"}),
        (
            "Write to ada@example.org or see https://example.org/a?b=1.",
            {"ada@example.org", "https://example.org/a?b=1"},
        ),
        ("Nothing here. Also nothing there.", set()),
        ("Ada Lovelace wrote it. NASA agreed.", {"ada lovelace", "nasa"}),
        ("all in small letters, even london", set()),
        ("", set()),
    ],
)
def test_entities_of_an_english_text(text, expected):
    assert pattern_entities(text) == expected


def test_forms_of_one_name_are_one_entity():
    assert normalized_entities([" Straße ", "STRASSE", "ＡＢＣ", "abc", ""]) == {"strasse", "abc"}


def test_names_in_chinese_come_from_the_tagger(monkeypatch):
    monkeypatch.setitem(sys.modules, "rjieba", SimpleNamespace(tag=lambda text: TAGGED))
    assert chinese_entities(SENTENCE) == {"张伟", "北京", "清华大学"}


def test_without_the_tagger_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(ConfigError, match="pip install rjieba, or give a function of your own"):
        chinese_entities(SENTENCE)


def test_overlap_is_a_share_of_what_is_wanted():
    assert overlap({"a", "b", "c"}, {"a", "b", "x", "y"}) == 0.5
    assert overlap({"a"}, set()) is None
