"""Each algorithm learns: the reward of a tiny policy rises, by the real command and in process."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from runs import arguments, command, log_lines, swift, train, weights

REWARD_FILE = """
from swift_rlx import register_reward

@register_reward("share_of_digits")
def share_of_digits(completion: str) -> float:
    return sum(letter.isdigit() for letter in completion) / max(len(completion), 1)
"""


def share_of_digits(completions: list[str]) -> list[float]:
    return [sum(letter.isdigit() for letter in text) / max(len(text), 1) for text in completions]


@pytest.fixture
def reward_file(tmp_path: Path) -> Path:
    path = tmp_path / "digits.py"
    path.write_text(REWARD_FILE)
    return path


LEARNERS: dict[str, dict[str, Any]] = {
    "rloo": {"rlhf_type": "rloo"},
    "reinforce_pp": {"rlhf_type": "reinforce_pp"},
    "reinforce_pp, one completion": {"rlhf_type": "reinforce_pp", "num_generations": 1},
    "reinforce_pp, running mean": {"rlhf_type": "reinforce_pp", "group_baseline": "ema"},
    "reinforce_pp_baseline": {"rlhf_type": "reinforce_pp_baseline"},
}


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_the_reward_rises(
    learner: str, tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    train(
        tiny_model,
        write_rows(64),
        tmp_path / "run",
        reward_funcs=[share_of_digits],
        tuner_type="full",
        max_steps=30,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        max_grad_norm=1.0,
        **LEARNERS[learner],
    )
    rewards = [line["reward"] for line in log_lines(tmp_path / "run") if "reward" in line]
    start, end = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert end > start + 0.15, f"reward went from {start:.3f} to {end:.3f}"


def _train_until_killed(options: dict[str, Any], output: Path, step: int) -> None:
    """Start the real command and kill -9 all of it while it writes the checkpoint of `step`."""
    marker = output / f"checkpoint-{step}"
    with subprocess.Popen(
        command(options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 200
        while not marker.exists():
            assert process.poll() is None, process.stdout.read() if process.stdout else ""
            assert time.monotonic() < deadline, "no checkpoint appeared"
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (output / "checkpoint-30").exists(), "the run had ended before it was killed"


def _resume_by_command(options: dict[str, Any]) -> None:
    result = swift(options)
    assert result.returncode == 0, result.stderr[-2000:]


def _resume_in_process(options: dict[str, Any]) -> None:
    # The code of this file and not of the plugin's: another version, whose scores are the same.
    named_in_python = {
        "reward_funcs": [share_of_digits],
        "external_plugins": [],
        "reward_version_change": "rescore",
    }
    train(options["model"], options["dataset"][0], options["output_dir"], **options | named_in_python)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rlhf_type", "resume_by"), [("rloo", _resume_by_command), ("reinforce_pp", _resume_in_process)]
)
def test_a_killed_run_resumes_bit_equal_to_the_unbroken_one(
    rlhf_type: str,
    resume_by: Callable[[dict[str, Any]], None],
    tiny_model: Path,
    write_rows: Callable[..., Path],
    reward_file: Path,
    tmp_path: Path,
) -> None:
    changes = {
        "rlhf_type": rlhf_type,
        "reward_funcs": ["share_of_digits"],
        "external_plugins": [str(reward_file)],
        "max_steps": 30,
        "save_strategy": "steps",
        "save_steps": 5,
        "steps_per_generation": 4,
    }
    data = write_rows(16)
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    named_in_python = {"reward_funcs": [share_of_digits], "external_plugins": []}
    train(tiny_model, data, unbroken, **changes | named_in_python)
    options = arguments(tiny_model, data, killed, **changes)
    _train_until_killed(options, killed, step=10)
    for torn in killed.glob("checkpoint-*"):  # the kill may have torn the newest one
        if torn.name != "checkpoint-5":
            shutil.rmtree(torn)
    options["resume_from_checkpoint"] = str(killed / "checkpoint-5")
    resume_by(options)
    final, start = weights(unbroken / "checkpoint-30"), weights(unbroken / "checkpoint-5")
    resumed = weights(killed / "checkpoint-30")
    assert all(torch.equal(final[name], resumed[name]) for name in final)
    assert any(not torch.equal(final[name], start[name]) for name in final)


@pytest.mark.slow
def test_two_ranks_resume_inside_a_generation_batch(
    tiny_model: Path, write_rows: Callable[..., Path], reward_file: Path, tmp_path: Path
) -> None:
    options = arguments(
        tiny_model,
        write_rows(16),
        tmp_path / "unbroken",
        rlhf_type="reinforce_pp",
        group_baseline="ema",
        reward_funcs=["share_of_digits"],
        external_plugins=[str(reward_file)],
        max_steps=6,
        save_strategy="steps",
        save_steps=3,
        steps_per_generation=4,
        ddp_backend="gloo",
    )
    result = swift(options, NPROC_PER_NODE="2")
    assert result.returncode == 0, result.stderr[-2000:]
    checkpoint = tmp_path / "unbroken" / "checkpoint-3"
    buffers = sorted(file.name for file in (checkpoint / "rlx").glob("buffer*"))
    assert buffers == ["buffer-rank0.safetensors", "buffer-rank1.safetensors"]
    again = {"resume_from_checkpoint": str(checkpoint), "output_dir": str(tmp_path / "resumed")}
    result = swift(options | again, NPROC_PER_NODE="2")
    assert result.returncode == 0, result.stderr[-2000:]
    final = weights(tmp_path / "unbroken" / "checkpoint-6")
    resumed = weights(tmp_path / "resumed" / "checkpoint-6")
    assert all(torch.equal(final[name], resumed[name]) for name in final)


@pytest.mark.slow
@pytest.mark.versions
def test_the_users_command_trains_from_a_yaml_file(
    tiny_model: Path, write_rows: Callable[..., Path], reward_file: Path, tmp_path: Path
) -> None:
    """The other types, each on two ranks: `test_ranks`."""
    options = arguments(
        tiny_model,
        write_rows(16),
        tmp_path / "run",
        rlhf_type="rloo",
        reward_funcs=["share_of_digits"],
        external_plugins=[str(reward_file)],
        save_strategy="steps",
        save_steps=2,
    )
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(options))
    result = swift(config)
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / "run" / "checkpoint-2" / "rlx" / "state.json").exists()
    assert any(line.get("grad_norm", 0) > 0 for line in log_lines(tmp_path / "run"))
