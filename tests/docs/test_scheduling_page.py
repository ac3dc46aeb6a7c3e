"""docs/*/scheduling.md: its numbers are what the command prints, and both languages have the same ones."""

from __future__ import annotations

import re
import shlex

import pytest
from doc_pages import LANGUAGES, read, tables

from swift_rlx.cli import main as command_line
from swift_rlx.simulation.tables import CASES, RULES, scheduling_cases


def _numbers(text):
    return re.findall(r"\d+(?:\.\d+)?", text)


def _compared(language):
    """The six tables of rules, each as cells by rule."""
    found = [table for table in tables(read(language, "scheduling")) if len(table) == len(RULES) + 1]
    return [{row[0].strip("*"): row[1:] for row in table[1:]} for table in found]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_shown_output_is_that_of_the_shown_command(language, capsys):
    text = read(language, "scheduling")
    (command,) = re.findall(r"^    swift-rlx (simulate --train-s .*)$", text, re.MULTILINE)
    assert command_line.main(shlex.split(command)) == 0
    assert f"```\n{capsys.readouterr().out}```" in text


def test_both_languages_have_the_same_tables():
    english, chinese = (
        [_numbers(str(table[1:])) for table in tables(read(one, "scheduling"))] for one in LANGUAGES
    )
    assert english == chinese


def test_every_rule_is_in_each_of_the_six_tables():
    assert [set(table) for table in _compared("en")] == [set(RULES)] * len(CASES)


@pytest.mark.slow
def test_the_tables_are_what_the_simulator_gives(monkeypatch):
    monkeypatch.setattr("swift_rlx.simulation.tables.CASES", CASES[3:4])
    (case,) = scheduling_cases(steps=300, seeds=3)
    published = _compared("en")[3]
    for row in case.rows:
        outcome = row.outcome
        assert published[row.rule] == [
            f"{outcome.steps_per_h:.1f}",
            f"{row.relative:.1%}".replace("%", " %"),
            f"{outcome.trained_over_bound:.1%}".replace("%", " %"),
            f"{outcome.mean_staleness:.2f}",
            f"{outcome.max_staleness}",
            *(
                f"{share:.1%}".replace("%", " %")
                for share in (
                    outcome.in_mask,
                    outcome.over_age,
                    outcome.lost,
                    outcome.tail_share,
                    outcome.tail_in_mask,
                )
            ),
        ]
