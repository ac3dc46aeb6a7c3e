"""The benchmark of the rewards runs and reports; what is reached is judged by the script alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("reward_runner.py")


@pytest.mark.slow
def test_the_benchmark_of_the_rewards_measures_a_step_and_every_way_of_running(tmp_path: Path) -> None:
    output = tmp_path / "reward_runner.json"
    command = [sys.executable, str(SCRIPT), "--train-s", "0.2", "--steps", "4", "--output", str(output)]
    command += ["--contestants", "as long as the training"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["runs"]["as long as the training"]["step_s"] >= 0.2
    assert len(found["overhead_us_a_row"]) == 6
    assert all(value > 0 for value in found["overhead_us_a_row"].values())
