"""docs/*/monitoring.md is true: its metrics, limits, columns and shown lines are those of the code."""

from __future__ import annotations

import re

import pytest
from doc_pages import LANGUAGES, blocks, flags, read, tables

from swift_rlx.monitors import COLUMNS, METRICS, Phase, RolloutPlan, RunTotals, Timeline, progress_line
from swift_rlx.monitors.summary import Limit, ledger_line, summary_line
from swift_rlx.types import Fate


def _page(language):
    return tables(read(language, "monitoring"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_table_of_metrics_is_that_of_the_code(language):
    names = [row[0].strip("`") for row in _page(language)[-1][1:]]
    assert names == list(METRICS)
    if language == "en":
        assert {row[0].strip("`"): row[1] for row in _page(language)[-1][1:]} == METRICS


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_limit_has_a_row_with_what_to_change(language):
    (table,) = [table for table in _page(language) if table[0][0] == "limited by"]
    assert [row[0].split("（")[0] for row in table[1:]] == [
        limit.value
        for limit in (
            Limit.TRAINING,
            Limit.AWAY,
            Limit.TURNS,
            Limit.REWARDS,
            Limit.GENERATION,
            Limit.STALENESS,
            Limit.PUBLISHING,
            Limit.EVALUATION,
            Limit.CHECKPOINTS,
            Limit.BETWEEN,
        )
    ]
    assert len(table) == 1 + len(Limit)
    assert all(len(row) == 3 and all(row) for row in table)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_shown_lines_are_what_the_code_says(language):
    shown = re.findall(r"^    (rollout.*|tokens:.*)$", read(language, "monitoring"), re.MULTILINE)
    values = {
        "rollout/inflight": 23,
        "rollout/ready": 2,
        "rollout/staleness_mean": 1.2,
        "rollout/staleness_max": 2,
        "rollout/tokens_per_s": 1900,
        "rollout/trainer_busy": 0.94,
    }
    totals = RunTotals(
        steps=100,
        wall_s=1000.0,
        seconds={Phase.TRAIN: 600.0, Phase.WAIT: 400.0},
        mean_inflight=60,
        slots=64,
        generate_s=4.0,
        score_s=0.1,
        tokens={Fate.TRAINED: 931_000, Fate.OVER_AGE: 49_000, Fate.FAILED: 4_000, Fate.IN_FLIGHT: 16_000},
    )
    plan = RolloutPlan(workers=2, max_inflight=32)
    assert shown == [progress_line(values), summary_line(totals, plan), ledger_line(totals.tokens)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_column_and_fate_is_explained(language):
    text = read(language, "monitoring")
    assert all(f"`{name}`" in text for name in [*COLUMNS, *(fate.value for fate in Fate)])


def test_both_languages_show_the_same():
    english, chinese = (read(language, "monitoring") for language in LANGUAGES)
    assert blocks(english, "python") == blocks(chinese, "python")
    assert sorted(set(flags(english))) == sorted(set(flags(chinese)))
    assert [len(table) for table in tables(english)] == [len(table) for table in tables(chinese)]


def test_the_python_of_the_page_finds_the_slowest_answer(tmp_path, monkeypatch):
    timeline = Timeline(tmp_path / "timeline.json", start_s=0.0)
    timeline.span("worker-0", "answers", "prompt 0/1 #0", 1.0, 2.0)
    timeline.span("worker-0", "answers", "prompt 0/2 #0", 1.0, 4.0)
    timeline.span("trainer", "trainer", "train 1", 0.0, 9.0)
    timeline.close()
    monkeypatch.chdir(tmp_path)
    (snippet,) = blocks(read("en", "monitoring"), "python")
    page: dict[str, object] = {}
    exec(compile(snippet, "docs/en/monitoring.md", "exec"), page)
    assert page["slowest"]["name"] == "prompt 0/2 #0"
