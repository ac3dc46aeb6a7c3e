"""The examples in `examples/python_api` run, on a tiny model."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python_api"
KIND = ["--model_type", "llama", "--template", "chatml"]


@pytest.mark.slow
def test_rloo_trainer(tiny_model: Path, tmp_path: Path) -> None:
    words = ["--model", tiny_model, *KIND, "--steps", "2", "--output_dir", tmp_path / "run"]
    done = subprocess.run(
        [sys.executable, EXAMPLES / "train.py", *map(str, words)],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.findall(r"^step (\d): reward [01]\.\d{3} \+- 0\.\d{3}$", done.stdout, re.MULTILINE) == [
        "1",
        "2",
    ]
    assert (tmp_path / "run" / "checkpoint-2" / "adapter_model.safetensors").exists()


@pytest.mark.slow
def test_reinforce_pp_with_a_running_mean_and_a_reward_by_name(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from swift_rlx.rewards import REWARDS

    steps = ["--steps", "3", "--max_completion_length", "8", "--output_dir", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["commented_code.py", "--model", str(tiny_model), *KIND, *steps])
    used = runpy.run_path(str(EXAMPLES / "commented_code.py"), run_name="__main__")
    printed = capsys.readouterr().out

    assert len(re.findall(r"^step \d: comment density \d\.\d{3}$", printed, re.MULTILINE)) == 3
    assert re.search(r"^running mean of the reward: \d\.\d{3}$", printed, re.MULTILINE)
    assert used["comment_density"]("# add\nx = 1 + 1\n// note\n") == pytest.approx(2 / 3)
    assert "comment_density" in REWARDS.names()


@pytest.mark.slow
def test_the_call_of_the_readme(
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [code] = re.findall(
        r"```python\n(.*?)```", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    write_rows(name="questions.jsonl")
    monkeypatch.chdir(tmp_path)
    small = 'model_type="llama", template="chatml", max_completion_length=6, max_steps=1, check_model=False'
    plain = 'torch_dtype="float32", report_to=["none"], logging_steps=1, use_cpu=True, dataset_num_proc=1'
    code = code.replace("Qwen/Qwen2.5-0.5B-Instruct", str(tiny_model)).replace(
        "per_device_train_batch_size=8,", f"per_device_train_batch_size=4, {small}, {plain},"
    )
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})

    assert re.search(r"^\[\d\.\d*\]$", capsys.readouterr().out, re.MULTILINE)
