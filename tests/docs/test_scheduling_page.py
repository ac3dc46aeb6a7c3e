"""docs/*/scheduling.md: its numbers are what the command prints, and both languages have the same ones."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest
from doc_pages import LANGUAGES, read, tables

from swift_rlx.cli import main as command_line
from swift_rlx.simulation.limits import ceiling
from swift_rlx.simulation.tables import BASE, CASES, OURS, RULES, scheduling_cases


def _numbers(text):
    return re.findall(r"\d+(?:\.\d+)?", text)


def _compared(language):
    """The six tables of rules, each as cells by rule."""
    found = [table for table in tables(read(language, "scheduling")) if table[0][0] in ("rule", "规则")]
    return [{row[0].strip("*"): row[1:] for row in table[1:]} for table in found]


@pytest.mark.slow
def test_the_shown_output_is_that_of_the_shown_command(capsys):
    texts = [read(language, "scheduling") for language in LANGUAGES]
    ((command,),) = {
        tuple(re.findall(r"^    swift-rlx (simulate --train-s .*)$", text, re.MULTILINE)) for text in texts
    }
    assert command_line.main(shlex.split(command)) == 0
    shown = f"```\n{capsys.readouterr().out}```"
    assert all(shown in text for text in texts)


def test_both_languages_have_the_same_tables():
    english, chinese = (
        [_numbers(str(table[1:])) for table in tables(read(one, "scheduling"))] for one in LANGUAGES
    )
    assert english == chinese


def test_every_rule_is_in_each_of_the_six_tables():
    assert [set(table) for table in _compared("en")] == [set(RULES)] * len(CASES)


def test_the_table_of_the_corner_repeats_the_rules_beside_their_ceilings():
    (corner,) = [table for table in tables(read("en", "scheduling")) if table[0][-1] == "corner"]
    rules = {"1": OURS, "8": "swift-rlx, 8 pick-ups a step"}
    for number, row in enumerate(corner[1:]):
        train_s, sigma = CASES[number // 2]
        rule = _compared("en")[number // 2][rules[row[1]]]
        assert row[0] == f"{train_s:g} s, {sigma:g}"
        assert [row[at] for at in (2, 3, 4, 5, 7, 8, 9)] == [rule[at] for at in (1, 2, 7, 6, 5, 8, 9)]
        if number not in (0, 7):  # the others take the time of this one each
            continue
        setting = replace(BASE, train_s=train_s, sigma=sigma, steps=300, batches_per_step=int(row[1]))
        seeds = [ceiling(replace(setting, seed=seed), 3600 / float(rule[0])) for seed in range(3)]
        expected = [100 * sum(shares) / 3 for shares in zip(*seeds, strict=True)]
        assert [float(row[at].split()[0]) for at in (6, 10)] == pytest.approx(expected, abs=0.06)
    assert len(corner) == 2 * len(CASES) + 1


def test_the_table_with_a_store_repeats_the_rules():
    """Cells 2, 3, 4, 6 to 9 are those of the rule's row; the verdict follows from them."""
    (filled,) = [table for table in tables(read("en", "scheduling")) if "from the store" in table[0]]
    rules = {"1": "swift-rlx, fill the wait", "8": "swift-rlx, 8 pick-ups, fill"}
    assert len(filled) == 2 * len(CASES) + 1
    for number, row in enumerate(filled[1:]):
        train_s, sigma = CASES[number // 2]
        rule = _compared("en")[number // 2][rules[row[1]]]
        assert row[0] == f"{train_s:g} s, {sigma:g}"
        assert [row[at] for at in (2, 3, 4, 6, 7, 8, 9)] == [rule[at] for at in (1, 10, 2, 5, 11, 9, 12)]
        fast, kept = float(row[2].split()[0]) >= 95, float(row[5].split()[0]) < 5
        long_ones = sum(float(row[at].split()[0]) for at in (8, 9)) >= 50
        assert (row[10] == "reached") == (fast and kept and long_ones)


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
            f"{outcome.stored_steps_per_h:.1f}",
            f"{outcome.from_store:.1%}".replace("%", " %"),
            f"{outcome.tail_from_store:.1%}".replace("%", " %"),
        ]
