"""What is served: rewards by name, reward models through a loader, ensembles; and the answer for rows that fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from swift_rlx.errors import ConfigError, PluginError
from swift_rlx.reward_service.source_text import Source, parse_source
from swift_rlx.reward_service.sources import ServedReward as Served
from swift_rlx.reward_service.sources import find_loader, model_digest
from swift_rlx.reward_service.wire import Row
from swift_rlx.rewards import register_reward


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
