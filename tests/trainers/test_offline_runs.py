"""Runs on stored groups alone: no engine, no reward; the same by any split, in any number of starts and of ranks."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from answered_store import answered_group, answered_store

from swift_rlx.cli import main as command_line
from swift_rlx.errors import ConfigError
from swift_rlx.store import GroupFilter, TrajectoryStore
from swift_rlx.store.trainable import TrainableGroups

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
OPTIONS: dict[str, Any] = {
    "rlhf_type": "rloo",
    "num_train_epochs": 2,
    "max_steps": -1,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "save_strategy": "steps",
    "save_steps": 3,
    "async_rollout": None,
    "num_generations": None,
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
}
ENGINES = (
    "vllm",
    "swift_rlx.trainers.pipeline_plan",
    "swift.infer_engine.vllm_engine",
)


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that generates can be imported."""
    for name in ENGINES:
        monkeypatch.setitem(sys.modules, name, None)


class Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What ms-swift's logger and ours say."""
    handler, logger = Kept(), logging.getLogger("swift")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


def offline(model: Path, store: Path, output: Path, **changes: Any) -> Any:
    return runs.train(model, store, output, **OPTIONS | changes)


def last(output: Path) -> dict[str, torch.Tensor]:
    found = max(output.glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))
    return runs.weights(found)


def is_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(left[name].equal(right[name]) for name in left)


def steps(output: Path) -> list[dict[str, Any]]:
    return [line for line in runs.log_lines(output) if "loss" in line]


def test_a_log_of_scored_texts_trains_for_two_epochs_and_a_resume_changes_no_bit(
    tiny_model: Path, tmp_path: Path, said: list[str]
) -> None:
    log = tmp_path / "log.jsonl"
    rows = [
        {"question": f"Say {row}", "output": "one two three"[: 3 + place * 4], "rating": place - row % 2}
        for row in range(12)
        for place in range(3)
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = ["prompt=question", "answer=output", "score=rating"]
    model = ["--model", tiny_model, "--model-type", "llama", "--template", "chatml"]
    words = ["store", "import", tmp_path / "s", log, "--columns", *columns, *model]
    assert command_line.main([str(word) for word in words]) == 0
    store = tmp_path / "s"
    trainer = offline(tiny_model, store, tmp_path / "whole", gradient_accumulation_steps=3)
    assert trainer.num_generations == 3, (
        "the places of a group are as many as its completions, where nothing is said"
    )
    assert trainer.state.global_step == 6
    text = "\n".join(said)
    assert "trains by awac: 12 groups with 36 completions, rewards of 'score@imported'" in text
    assert "trained on 72 stored completions" in text
    assert "2 epochs over 12 groups" in text
    first = steps(tmp_path / "whole")[0]
    assert first["awac/mean_weight"] == pytest.approx(0.5, abs=0.2)
    assert first["awac/cross_entropy"] > 0
    assert first["store/empty_places"] == 0
    assert first["reward"] == pytest.approx(0.5, abs=0.3)
    of_rollouts = {
        name: value for name, value in first.items() if name.startswith(("rollout/", "offpolicy/"))
    }
    assert of_rollouts == {"rollout/rows_unusable": 0}
    answered_store(store, name="later", groups=2)  # grows meanwhile
    resumed = {"resume_from_checkpoint": str(tmp_path / "whole" / "checkpoint-3")}
    offline(tiny_model, store, tmp_path / "resumed", gradient_accumulation_steps=3, **resumed)
    assert is_equal(last(tmp_path / "whole"), last(tmp_path / "resumed"))


@pytest.mark.parametrize(
    ("objective", "changes"),
    [
        ("rloo_is", {"num_iterations": 2, "beta": 0.05}),
        ("softmax_ce", {"beta": 0.1}),
        ("cql", {}),
    ],
)
def test_another_split_into_micro_batches_and_a_resume_within_a_generation_batch_train_the_same(
    objective: str, changes: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    store = answered_store(tmp_path / "s", 6)

    def run(name: str, **split: Any) -> dict[str, torch.Tensor]:
        options = (
            {"offline_objective": objective, "num_train_epochs": 1, "num_generations": 4, "save_steps": 1}
            | changes
            | split
        )
        offline(tiny_model, store, tmp_path / name, **options)
        return last(tmp_path / name)

    split = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    several = run("several", **split)
    for name, tensor in run("one", per_device_train_batch_size=8, gradient_accumulation_steps=1).items():
        torch.testing.assert_close(tensor, several[name], rtol=0, atol=2e-5)
    part = {**split, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
    halves = run("halves", **part)
    resumed = run("resumed", resume_from_checkpoint=str(tmp_path / "halves" / "checkpoint-3"), **part)
    assert is_equal(halves, resumed)
    assert not is_equal(halves, several)


def test_stored_log_probs_are_the_weights_and_missing_ones_are_computed_once_and_marked(
    tiny_model: Path, tmp_path: Path, said: list[str]
) -> None:
    known = answered_store(tmp_path / "known", 6)
    offline(tiny_model, known, tmp_path / "auto", num_train_epochs=1, beta=0.0)
    [line, *_] = steps(tmp_path / "auto")
    assert "trains by rloo_is" in "\n".join(said)
    assert line["offpolicy/stored/ess_seq"] < 0.99, "the store's log-probs are of nobody in particular"

    def lacking(name: str) -> Path:
        return answered_store(tmp_path / name, 6, with_logprobs=False)

    lacks = {"offline_objective": "rloo_is", "num_train_epochs": 1, "beta": 0.0}
    offline(tiny_model, lacking("lacking"), tmp_path / "computed", **lacks)
    [line, *_] = steps(tmp_path / "computed")
    assert line["offpolicy/stored/ess_seq"] == pytest.approx(1.0, abs=1e-4)
    snapshot = TrajectoryStore.open(tmp_path / "lacking").snapshot()
    groups = TrainableGroups(snapshot, GroupFilter())
    assert groups.num_without_logprobs() == 0
    assert groups.logprobs_by() == {"llama at the start of a run"}
    manifest = TrajectoryStore.open(tmp_path / "lacking").manifest().generation
    offline(tiny_model, tmp_path / "lacking", tmp_path / "again", **lacks)
    assert is_equal(last(tmp_path / "computed"), last(tmp_path / "again"))
    assert TrajectoryStore.open(tmp_path / "lacking").manifest().generation == manifest
    assert "were computed afterwards, by llama at the start of a run" in "\n".join(said)


def test_two_ranks_train_what_one_process_does(tiny_model: Path, tmp_path: Path) -> None:
    store = answered_store(tmp_path / "s", 6)
    options = OPTIONS | {
        "num_generations": 4,
        "num_train_epochs": 1,
        "save_steps": 3,
        "offline_objective": "awac",
    }
    one = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    offline(tiny_model, store, tmp_path / "one", **options | one)
    ranks = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "ddp_backend": "gloo"}
    done = runs.swift(
        runs.arguments(tiny_model, store, tmp_path / "two", **options | ranks), NPROC_PER_NODE="2"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, tensor in last(tmp_path / "one").items():
        torch.testing.assert_close(tensor, last(tmp_path / "two")[name], rtol=0, atol=2e-6)
    for left, right in zip(steps(tmp_path / "one"), steps(tmp_path / "two"), strict=True):
        assert left["awac/cross_entropy"] == pytest.approx(right["awac/cross_entropy"], rel=1e-4)


def test_an_exported_store_loads_in_stock_ms_swift_and_in_datasets(tiny_model: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    store, answers = answered_store(tmp_path / "s", 4), tmp_path / "answers.jsonl"
    model = ["--model", str(tiny_model), "--model-type", "llama", "--template", "chatml"]
    assert command_line.main(["store", "export", str(store), str(answers), *model]) == 0
    assert (
        len(load_dataset("json", data_files=str(answers), cache_dir=str(tmp_path / "cache"))["train"]) == 16
    )
    options = runs.arguments(
        tiny_model, answers, tmp_path / "sft", rlhf_type=None, async_rollout=None, num_generations=None
    )
    options = {name: value for name, value in options.items() if name != "max_completion_length"}
    words = ["sft" if word == "rlhf" else word for word in runs.command(options)]
    import os
    import subprocess

    done = subprocess.run(
        words,
        env=os.environ | {"MASTER_PORT": runs.free_port(), "SWIFT_PLUGINS": "none"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(steps(tmp_path / "sft")) == 2


def test_a_store_without_completions_that_fit_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    store = TrajectoryStore.create(tmp_path / "s")
    with store.writer("a") as writer:
        writer.add([answered_group(number, 2, tokens=600) for number in range(4)])
        writer.seal()
    with pytest.raises(ConfigError, match=r"none of the 8 stored completions fits into 512 tokens"):
        offline(tiny_model, tmp_path / "s", tmp_path / "out", offline_objective="awac")
