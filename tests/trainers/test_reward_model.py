"""`--reward_model` as in stock: its own tokenizer and template, beside reward functions and weighted last."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from tiny_reward_model import save_reward_model, scores
from transformers import LlamaForSequenceClassification


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random reward model whose vocabulary is smaller than the policy's: foreign ids would not fit."""
    return save_reward_model(tmp_path_factory.mktemp("scorer") / "scorer")


@pytest.fixture
def train(
    tiny_model: Path, reward_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> Callable[..., dict[str, list[Any]]]:
    """Trains with the reward model; gives the completions table of the first step."""

    def run(**options: Any) -> dict[str, list[Any]]:
        scorer = {
            "reward_model": [str(reward_model)],
            "reward_model_type": ["llama"],
            "reward_template": ["chatml"],
        }
        output = tmp_path / "run"
        runs.train(tiny_model, write_rows(), output, log_completions=True, **scorer | options)
        return json.loads((output / "completions.jsonl").read_text(encoding="utf-8").splitlines()[0])

    return run


def length(completions: list[str], **_: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


@pytest.mark.slow
@pytest.mark.versions
def test_a_reward_model_with_another_vocabulary_scores_by_its_own_and_says_so(
    train: Callable[..., dict[str, list[Any]]], reward_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swift_rlx.trainers import startup

    said: list[str] = []
    monkeypatch.setattr(startup.logger, "info", lambda text, *_: said.append(str(text)))
    table = train(rlhf_type="rloo", beta=0.0)

    assert len(set(table["scorer"])) > 4
    assert table["scorer"] == pytest.approx(scores(reward_model, table), abs=1e-4)
    [line] = [one for one in said if "the reward model" in one]
    assert "its own tokenizer of 27" in line
    assert "the template chatml; its weights take " in line
    assert " GB on cpu, beside the policy's" in line


@pytest.mark.slow
@pytest.mark.parametrize("rlhf_type", ["rloo", "reinforce_pp_baseline"])
def test_the_weight_of_the_reward_model_is_the_last(
    rlhf_type: str, train: Callable[..., dict[str, list[Any]]], tmp_path: Path
) -> None:
    table = train(rlhf_type=rlhf_type, beta=0.0, reward_funcs=[length], reward_weights=[0.25, 3.0])

    combined = [0.25 * a + 3.0 * b for a, b in zip(table["length"], table["scorer"], strict=True)]
    [line, *_] = runs.log_lines(tmp_path / "run")
    assert line["reward"] == pytest.approx(sum(combined) / len(combined), abs=1e-5)
    assert line["reward/length/mean"] == pytest.approx(sum(table["length"]) / 8)
    assert line["reward/scorer/mean"] == pytest.approx(sum(table["scorer"]) / 8, abs=1e-6)
    if rlhf_type == "rloo":
        groups = torch.tensor(combined, dtype=torch.float64).view(2, 4)
        others = (groups.sum(1, keepdim=True) - groups) / 3
        assert table["advantages"] == pytest.approx((groups - others).flatten().tolist(), abs=1e-4)


@pytest.mark.slow
def test_an_ensemble_of_reward_models_is_one_reward(
    train: Callable[..., dict[str, list[Any]]], reward_model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "rival"
    shutil.copytree(reward_model, other)
    model = LlamaForSequenceClassification.from_pretrained(other)
    with torch.no_grad():
        model.score.weight.neg_()
    model.save_pretrained(other)
    both = {"reward_model": [str(reward_model), str(other)], "reward_ensemble": "wco"}
    table = train(
        rlhf_type="rloo", beta=0.0, reward_model_type=["llama"] * 2, reward_template=["chatml"] * 2, **both
    )

    lowest = [min(pair) for pair in zip(table["scorer"], table["rival"], strict=True)]
    assert max(lowest) <= 0, "of a number and its negative"
    [line, *_] = runs.log_lines(tmp_path / "run")
    assert line["reward"] == pytest.approx(sum(lowest) / len(lowest), abs=1e-5)
    assert line["reward/ensemble/disagreement_spearman"] == pytest.approx(-1.0)
