"""When the quickstart counts as a success, and what its run says when it cannot start."""

from __future__ import annotations

import importlib
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUICKSTART = EXAMPLES / "quickstart"


@pytest.fixture
def load(monkeypatch):
    """Import a file of the quickstart as its own run.py does, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(QUICKSTART))
    names = {path.stem for path in QUICKSTART.glob("*.py")}
    environment = dict(os.environ)

    def import_file(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield import_file
    for name in names & sys.modules.keys():
        del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)


def rewards(values: list[float]) -> list[list[float]]:
    return [[value, value] for value in values]


def test_a_clear_rise_succeeds(load):
    verdict = load("verdict").compare(rewards([0.3, 0.5] * 16), rewards([0.7, 0.8] * 16))
    assert verdict.before.mean == pytest.approx(0.4)
    assert verdict.after.mean == pytest.approx(0.75)
    assert verdict.rise.mean == pytest.approx(0.35)
    # Differences 0.4 and 0.3 in turn: standard deviation 0.05 * sqrt(32 / 31).
    assert verdict.rise.standard_error == pytest.approx(0.05 * math.sqrt(32 / 31) / math.sqrt(32))
    assert verdict.is_success


def test_a_rise_below_a_fifth_fails_however_certain(load):
    verdict = load("verdict").compare(rewards([0.4] * 40), rewards([0.59] * 40))
    assert verdict.rise.standard_error == pytest.approx(0.0)
    assert not verdict.is_success


def test_a_rise_within_three_standard_errors_fails_however_large(load):
    verdict = load("verdict").compare(rewards([0.0] * 32), rewards([1.0] * 8 + [0.0] * 24))
    assert verdict.rise.mean == pytest.approx(0.25)
    assert 3 * verdict.rise.standard_error < 0.25
    assert verdict.is_success
    verdict = load("verdict").compare(rewards([0.9] * 16 + [0.0] * 16), rewards([0.0] * 11 + [1.0] * 21))
    assert verdict.rise.mean > 0.2
    assert not verdict.is_success


def test_the_pairing_takes_the_difficulty_of_the_prompts_out_of_the_error(load):
    difficulty = [i / 64 for i in range(32)]
    verdict = load("verdict").compare(rewards(difficulty), rewards([d + 0.25 for d in difficulty]))
    assert verdict.rise.standard_error == pytest.approx(0.0, abs=1e-12)
    assert verdict.is_success


@pytest.mark.parametrize(("before", "after"), [(31, 31), (32, 33)])
def test_too_few_or_different_prompts_are_refused(load, before, after):
    with pytest.raises(ValueError, match="the same ones, at least 32"):
        load("verdict").compare(rewards([0.1] * before), rewards([0.5] * after))


@pytest.mark.parametrize("folder", ["quickstart", "code_comments"])
def test_the_run_is_on_the_pipeline_with_the_best_engine_that_is_installed(folder):
    options = yaml.safe_load((EXAMPLES / folder / "rloo.yaml").read_text(encoding="utf-8"))
    assert options["rlhf_type"] == "rloo"
    assert options.get("async_rollout", True)
    assert options.get("max_staleness", 2) > 0
    assert options.get("rollout_backend", "auto") == "auto"


@pytest.mark.parametrize(("folder", "train", "heldout"), [("quickstart", 256, 48), ("code_comments", 96, 32)])
def test_the_prompts_are_what_the_script_writes_and_do_not_overlap(folder, train, heldout, tmp_path):
    script = shutil.copy(EXAMPLES / folder / "make_data.py", tmp_path)
    subprocess.run([sys.executable, "-S", script], check=True, capture_output=True)
    shipped = []
    for name, count in (("prompts_train.jsonl", train), ("prompts_heldout.jsonl", heldout)):
        text = (EXAMPLES / folder / name).read_text(encoding="utf-8")
        assert text == (tmp_path / name).read_text(encoding="utf-8")
        rows = [json.loads(line)["messages"][0]["content"] for line in text.splitlines()]
        assert len(rows) == count
        shipped += rows
    assert len(set(shipped)) == len(shipped)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("Bees make honey.", 1.0),
        ("Bees make honey", 0.5),
        ("one two three four five six seven eight nine ten.", 1.0),
        ("one two three four five six seven eight nine ten eleven.", 0.9),
        (" ".join(["word"] * 15) + ".", 0.5),
        ("Bees.\nHoney.", 0.5),
        ("\nBees make honey.\n", 1.0),
        ("", 0.0),
        ("   \n", 0.0),
        (".", 1.0),
    ],
)
def test_the_reward_is_half_for_length_and_half_for_shape(load, completion, expected):
    assert load("brief_fact").brief_fact(completion) == pytest.approx(expected)


def start(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    command = [python, str(QUICKSTART / "run.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_folder_that_is_no_example_is_refused(tmp_path):
    done = start(str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {tmp_path} is no example folder: it has no rloo.yaml; try examples/quickstart\n"
    )


def test_an_environment_without_swift_is_named(load, monkeypatch, capsys, tmp_path):
    run = load("run")
    monkeypatch.setattr(run.sys, "executable", str(tmp_path / "python"))
    assert run.main([]) == 1
    assert "there is no `swift` command beside" in capsys.readouterr().err


def test_a_training_that_fails_is_named_with_its_exit_code(load, tmp_path):
    run = load("run")
    example = run.Example(QUICKSTART, {"output_dir": str(tmp_path)})
    command = tmp_path / "swift"
    command.write_text("#!/bin/sh\nexit 7\n")
    command.chmod(0o755)
    with pytest.raises(run.ExampleError, match="ended with exit code 7"):
        run.train(str(command), example)


def test_the_run_folder_is_the_one_that_this_training_made(load, tmp_path):
    run = load("run")
    (tmp_path / "v0-old" / "checkpoint-10").mkdir(parents=True)
    example = run.Example(QUICKSTART, {"output_dir": str(tmp_path)})
    command = tmp_path / "swift"
    command.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/called\nmkdir -p {tmp_path}/v1-new/checkpoint-9 '
        f"{tmp_path}/v1-new/checkpoint-10\n"
    )
    command.chmod(0o755)
    made = run.train(str(command), example)
    assert made == tmp_path / "v1-new"
    assert run.last_checkpoint(made).name == "checkpoint-10"
    assert (tmp_path / "called").read_text() == "rlhf examples/quickstart/rloo.yaml\n"


def test_the_model_is_there_whole_or_not_at_all(load, tmp_path, monkeypatch):
    prepare_model = load("prepare_model")
    target = tmp_path / "models" / "tiny"
    monkeypatch.setattr(prepare_model, "package_folder", lambda: tmp_path)

    def half(source: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepare_model, "convert", half)
    with pytest.raises(OSError, match="No space left"):
        prepare_model.prepare(target)
    assert list(target.parent.iterdir()) == []
    monkeypatch.setattr(prepare_model, "convert", lambda source, folder: folder.mkdir())
    assert prepare_model.prepare(target) == target
    monkeypatch.setattr(prepare_model, "convert", half)
    assert prepare_model.prepare(target) == target  # made once


def test_a_disk_without_room_for_the_model_is_refused(load, tmp_path, monkeypatch):
    prepare_model = load("prepare_model")
    monkeypatch.setattr(prepare_model, "FOLDER_BYTES", 10**18)
    monkeypatch.setattr(prepare_model, "package_folder", lambda: tmp_path)
    with pytest.raises(prepare_model.PreparationError, match="GB free and the model needs"):
        prepare_model.prepare(tmp_path / "tiny")
