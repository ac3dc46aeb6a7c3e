"""What is served: rewards by name, reward models through a loader, ensembles; and the answer for rows that fail."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from swift_rlx.errors import ConfigError, PluginError
from swift_rlx.reward_service.address import parse_address
from swift_rlx.reward_service.frames import Setup
from swift_rlx.reward_service.source_text import Source, parse_source
from swift_rlx.reward_service.sources import ServedReward as Served
from swift_rlx.reward_service.sources import find_loader, model_digest
from swift_rlx.reward_service.wire import Row
from swift_rlx.reward_service.worker_program import _build as build
from swift_rlx.rewards import REWARDS, register_reward, resolve_reward
from swift_rlx.rewards.origin import import_file

PLUGIN = """
from swift_rlx import register_reward

@register_reward("without_version")
def without_version(completion: str, **columns) -> float:
    return 1.0
"""


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plugin file registers, and its folder on the module path, are of one test alone."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(REWARDS, "_registered", dict(REWARDS._registered))


@register_reward("served_length", version="2")
def served_length(completion: str, **columns: object) -> float:
    if completion == "bad":
        raise KeyError("no such thing")
    return float(len(completion))


@register_reward("served_solved", version="1.0")
async def served_solved(
    completions: list[str], solution: list[str], bonus: list[float] | None = None
) -> list[float]:
    return [float(one == right) for one, right in zip(completions, solution, strict=True)]


@register_reward("served_best", scope="batch")
def served_best(completions: list[str]) -> list[float]:
    return [float(one == max(completions)) for one in completions]


def load_lengths(path: str, factor: str = "1"):
    """A loader of a reward model: scores are characters of the last message, times `factor`."""
    return lambda completions, columns: [
        float(factor) * len(one[-1]["content"]) for one in columns["messages"]
    ]


def load_failing(path: str):
    def score(completions, columns):
        raise RuntimeError("out of memory")

    return score


LOADER = find_loader(f"{__name__}:load_lengths", {})


def served(text: str, version: str = "", loader=LOADER) -> Served:
    return Served(parse_source(text), version, loader)


def model(folder: Path, weights: bytes = b"w") -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    return folder


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("a_reward", Source("a_reward", ("a_reward",))),
        ("x=model:/m/v3", Source("x", ("model:/m/v3",))),
        ("x=mean(a, model:/m)", Source("x", ("a", "model:/m"), "mean")),
        ("x=uwo:0.25(a, b)", Source("x", ("a", "b"), "uwo:0.25")),
    ],
)
def test_a_source_is_a_name_a_model_or_an_ensemble(text, source):
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text", ["x=median(a, b)", "x=uwo:-1(a, b)", "x=mean:1(a, b)", "mean(a, b)", "x=mean()"]
)
def test_what_is_no_source_is_refused_with_the_kinds_that_there_are(text):
    with pytest.raises(ConfigError, match=r"is refused: .*JOIN one of mean, wco, min, uwo, uwo:C"):
        parse_source(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("safe=wco(a, b", r"the \( at character 9 is not closed: end it with \)"),
        ("safe=wco(model:/a, model:/b", r"the \( at character 9 is not closed"),
        ("safe=wco a, b)", r"the \) at character 14 was not opened: write JOIN\( before the members"),
        ("safe=wco(a, b))", "an ensemble has one pair of brackets"),
        (
            "x=mean(wco(a, b), c)",
            "an ensemble has one pair of brackets: its members are names and model:PATH",
        ),
    ],
)
def test_a_bracket_too_few_or_too_many_is_shown(text, words):
    with pytest.raises(ConfigError, match=rf"is refused: {words}.*, as in safe=wco\(a, b\)$"):
        parse_source(text)


def test_the_path_of_a_model_may_have_brackets():
    assert parse_source("x=model:/m(1)/v3").members == ("model:/m(1)/v3",)
    assert parse_source("x=wco(model:/m(1), model:/m (2))").members == ("model:/m(1)", "model:/m (2)")


def test_a_reward_by_name_says_its_version_and_columns():
    offer = served("served_solved").offer
    assert (offer.name, offer.version, offer.required, offer.optional) == (
        "served_solved",
        "1.0",
        ("solution",),
        ("bonus",),
    )
    assert served("served_solved", "v9").offer.version == "v9"
    assert served("served_length").offer.takes_any


def test_rows_of_several_callers_are_scored_together_and_a_missing_column_is_none():
    rows = [Row("4", {"solution": "4"}), Row("4", {"solution": "5", "bonus": 1.0})]
    assert served("served_solved").score(rows).scores == [1.0, 0.0]


def test_a_row_that_fails_keeps_the_scores_of_the_others():
    scored = served("served_length").score([Row("a"), Row("bad"), Row("ccc")])
    assert scored.scores == [1.0, None, 3.0]
    assert list(scored.faults) == [1]
    assert "KeyError: 'no such thing'" in scored.faults[1]
    assert "on the row (completion 'bad')" in scored.faults[1], (
        "its number in this batch would mislead the caller"
    )


def test_a_reward_of_a_file_without_a_version_has_the_digest_that_it_has_in_training(tmp_path):
    file = tmp_path / "unversioned.py"
    versions = []
    for score in ("1.0", "2.0"):
        file.write_text(PLUGIN.replace("1.0", score), encoding="utf-8")
        sys.modules.pop(import_file(str(file)).__name__)
        versions.append(served("without_version").offer.version)
        assert versions[-1] == resolve_reward("without_version").version
        assert parse_address(f"http://a:1/without_version@{versions[-1]},v4").versions == (versions[-1], "v4")
    assert all(re.fullmatch("code:[0-9a-f]{12}", version) for version in versions)
    assert versions[0] != versions[1]
    assert served("without_version", "v3").offer.version == "v3"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import os\n\nundefined()\n", "NameError: name 'undefined' is not defined in line 3"),
        (
            "import no_such_module_here",
            "ModuleNotFoundError: No module named 'no_such_module_here' in line 1",
        ),
        ("def f(:", r"SyntaxError: invalid syntax \(broken.py, line 1\)"),
        ("raise SystemExit(3)", "SystemExit: 3 in line 1"),
    ],
)
def test_a_plugin_file_that_fails_is_named_with_the_line(tmp_path, text, words):
    file = tmp_path / "broken.py"
    file.write_text(text, encoding="utf-8")
    setup = Setup(["served_length"], "", "a:b", {}, [], [str(file)])
    with pytest.raises(
        PluginError, match=rf"^--external-plugins {file} cannot be imported: {words}; mend that file$"
    ):
        build(setup)


def test_a_plugin_file_imports_its_neighbors_as_in_training(tmp_path):
    (tmp_path / "neighbor_of_plugin.py").write_text("SCORE = 5.0", encoding="utf-8")
    file = tmp_path / "with_neighbor.py"
    text = PLUGIN.replace("return 1.0", "return SCORE").replace("without_version", "with_neighbor")
    file.write_text("from neighbor_of_plugin import SCORE\n" + text, encoding="utf-8")
    [reward] = build(Setup(["with_neighbor"], "v1", "a:b", {}, [], [str(file)])).values()
    assert reward.score([Row("a")]).scores == [5.0]


class TakesArguments:
    def __init__(self, args=None):
        self.limit = args.max_completion_length

    def __call__(self, completion, **columns):
        return 0.0


def test_a_reward_that_reads_settings_of_a_run_says_which():
    register_reward("needs_run", version="1")(TakesArguments)
    with pytest.raises(
        PluginError, match=r"^reward 'needs_run' \(.*\) reads the setting --max_completion_length of a run"
    ):
        served("needs_run")


class DoesWithout:
    def __init__(self, args=None):
        self.limit = 80 if args is None else args.max_completion_length
        self.others = None

    def __call__(self, completion, **columns):
        return float(self.limit)


class LacksClient:
    def __init__(self, args=None):
        self.client = None
        self.client.open()

    def __call__(self, completion, **columns):
        return 0.0


def test_a_class_that_fails_without_reading_a_setting_says_how():
    register_reward("lacks_client", version="1")(LacksClient)
    with pytest.raises(PluginError, match=r"AttributeError: 'NoneType' object has no attribute 'open'"):
        served("lacks_client")


def test_a_reward_that_can_do_without_settings_of_a_run_is_served():
    register_reward("does_without", version="1")(DoesWithout)
    assert served("does_without").score([Row("a")]).scores == [80.0]


def test_a_reward_that_needs_the_whole_batch_is_refused():
    with pytest.raises(PluginError, match="depend on the whole batch"):
        served("served_best")


def test_a_reward_model_is_loaded_by_the_given_function_and_its_version_is_its_content(tmp_path):
    v3, v4 = model(tmp_path / "v3"), model(tmp_path / "v4", b"other")
    rows = [Row("?", {"messages": [{"role": "assistant", "content": "four"}]})]
    one, other = served(f"x=model:{v3}"), served(f"x=model:{v4}")
    assert one.score(rows).scores == [4.0]
    assert one.offer.required == ("messages",)
    assert one.offer.version == model_digest(v3) != other.offer.version
    doubled = served(f"x=model:{v3}", loader=find_loader(f"{__name__}:load_lengths", {"factor": "2"}))
    assert doubled.score(rows).scores == [8.0]
    nan = served(f"x=model:{v3}", loader=find_loader(f"{__name__}:load_lengths", {"factor": "nan"}))
    assert "not finite" in nan.score(rows).faults[0]
    failing = served(f"x=model:{v3}", loader=find_loader(f"{__name__}:load_failing", {}))
    assert "out of memory" in failing.score(rows).faults[0]
    with pytest.raises(ConfigError, match="there is no model"):
        served(f"x=model:{tmp_path}/none")


@pytest.mark.parametrize(
    ("join", "expected"), [("mean", 3.0), ("wco", 2.0), ("min", 2.0), ("uwo", 2.5), ("uwo:2", 1.0)]
)
def test_an_ensemble_joins_its_members(tmp_path, join, expected):
    v3 = model(tmp_path / "v3")
    rows = [Row("xx", {"messages": [{"role": "assistant", "content": "four"}]})]
    made = served(f"e={join}(served_length, model:{v3})")
    assert made.score(rows).scores == [expected]  # of 2 and 4, whose variance is 1
    assert made.offer.version == f"2+{model_digest(v3)}"
    assert made.score([Row("bad", rows[0].columns), rows[0]]).scores == [None, expected]
