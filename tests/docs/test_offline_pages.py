"""docs/*/offline*.md and constraint_filter.md: their numbers are calculated, their names those of the code."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import torch
from doc_pages import LANGUAGES, blocks, read, tables

from swift_rlx.algorithms.offline import (
    CONSTRAINTS,
    OBJECTIVES,
    awac_weights,
    make_objective,
    normalized,
    temperature_for,
)
from swift_rlx.algorithms.offline.constraint_settings import SETTINGS as CONSTRAINT_SETTINGS
from swift_rlx.algorithms.offline.constraint_settings import constraint_plan
from swift_rlx.algorithms.offline.objective_settings import DEFAULT_BETA, SETTINGS, WITH_BETA
from swift_rlx.integration.algorithm_table import ALGORITHMS
from swift_rlx.scheduler import BatchSource, HybridSchedule

PAGES = ("offline", "offline_rloo", "offline_imitation", "offline_cql", "constraint_filter")
SETTINGS_HEADS = (["objective", "settings"], ["目标", "设置"])
NEEDS = {
    "rewards": ("rewards", "奖励"),
    "pairwise": ("scores of one or more sources", "一个或几个来源的分数"),
    "behavior_logprobs": ("behavior log-probs", "采样策略的 log-prob"),
    "logits": ("logits", "logits"),
    "reference": ("reference logits", "参考模型的 logits"),
    "target": ("target logits", "目标副本的 logits"),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_objective_is_named_with_what_it_needs(language):
    [rows] = [table[1:] for table in tables(read(language, "offline")) if len(table[0]) == 4]
    assert [row[0].strip("`") for row in rows] == list(OBJECTIVES)
    for name, needs, _, page in rows:
        wanted = dataclasses.asdict(make_objective(name.strip("`")).needs)
        expected = {
            NEEDS[field][LANGUAGES.index(language)] for field, is_needed in wanted.items() if is_needed
        }
        assert set(re.split(r", |、", needs)) == expected
        assert name in read(language, re.search(r"\((\w+)\.md\)", page)[1])


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_setting_of_every_objective_is_named(language):
    [rows] = [table[1:] for table in tables(read(language, "offline")) if table[0] in SETTINGS_HEADS]
    assert [row[0].strip("`") for row in rows] == list(OBJECTIVES)
    for name, settings in rows:
        for setting in SETTINGS.get(name.strip("`"), {}):
            assert f"`{setting}`" in settings


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_weights_of_the_kl_are_the_defaults(language):
    [rows] = [
        table[1:] for table in tables(read(language, "offline")) if len(table[0]) == 2 and len(table) > 10
    ]
    [beta] = [text for name, text in rows if name == "`--beta`"]
    numbers = [float(one) for one in re.findall(r"[(（](\d[\d.]*)[)）]", beta)]
    assert sorted(numbers) == sorted([ALGORITHMS["rloo"].beta, *(DEFAULT_BETA[name] for name in WITH_BETA)])


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_schedule_shown_is_the_schedule(language):
    [rows] = [table[1:] for table in tables(read(language, "offline")) if table[0][0] == "r"]
    for ratio, shown in rows:
        schedule = HybridSchedule(2 / 3 if ratio == "2/3" else float(ratio))
        made = (schedule.take(has_stored=True) for _ in range(12))
        assert "".join("F" if one is BatchSource.STORED else "N" for one in made) == shown


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_weights_shown_are_those_of_the_code(language):
    [rows] = [table[1:] for table in tables(read(language, "offline_imitation")) if table[0][0] == "A"]
    for advantages, temperature, weights in rows:
        values = normalized(torch.tensor([float(one) for one in advantages.split(", ")]))
        found = temperature_for(values)
        assert f"{found:.4f}" == temperature
        shown = [float(one) for one in weights.split(", ")]
        assert awac_weights(values, found).tolist() == pytest.approx(shown, abs=5e-5)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_constraints_are_named(language):
    rows = tables(read(language, "constraint_filter"))[0][1:]
    assert [re.match(r"\w+", row[0], re.ASCII)[0] for row in rows] == list(CONSTRAINTS)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_settings_of_the_constraint_filter_are_named_with_their_defaults(language):
    _, uses, settings, *_ = tables(read(language, "constraint_filter"))
    for use in (row[0].strip("`").replace("X", "0.5") for row in uses[1:]):
        constraint_plan(use, None)
    shown = {row[0].strip("`"): row[1].strip("`") for row in settings[1:]}
    assert tuple(shown) == CONSTRAINT_SETTINGS
    given = {name: json.loads(value) for name, value in shown.items() if name != "constraints"}
    assert constraint_plan("reject", json.dumps(given)) == constraint_plan("reject", None)


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs_and_is_the_same_in_both_languages(page):
    english, chinese = (blocks(read(language, page), "python") for language in LANGUAGES)
    assert english == chinese
    for snippet in english:
        exec(compile(snippet, f"docs/en/{page}.md", "exec"), {})


@pytest.mark.parametrize("page", PAGES)
def test_both_languages_have_the_same_formulas_and_numbers(page):
    english, chinese = (read(language, page) for language in LANGUAGES)
    assert blocks(english, "") == blocks(chinese, "")
    numbers = [
        [re.findall(r"\d*\.?\d+", str(table[1:])) for table in tables(text)] for text in (english, chinese)
    ]
    assert numbers[0] == numbers[1]


def test_what_the_page_says_of_ppo_are_defaults_of_ms_swift():
    from swift.arguments.rlhf_args import PPOArguments

    [rows] = [table[1:] for table in tables(read("en", "offline")) if table[0][0] == "PPO"]
    shown = re.findall(r"`--(\w+)` \(([\d.]+)\)", str(rows))
    assert len(shown) == 7
    for name, default in shown:
        assert getattr(PPOArguments, name) == float(default), name
