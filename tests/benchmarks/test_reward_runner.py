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


def test_the_published_numbers_reach_the_goals() -> None:
    published = json.loads((SCRIPT.parent / "results" / "reward_runner.json").read_text(encoding="utf-8"))
    assert published["goals"] == {"cost": 0.05, "shorter": 0.35}
    steps = {name: row["step_s"] for name, row in published["runs"].items()}
    train_s = published["runs"]["free"]["train_s"]
    assert steps["half of a synchronous step"] >= 2 * 1.5 * train_s, (
        "scoring is half of it, generating a sixth"
    )
    assert published["cost"] == pytest.approx(steps["as long as the training"] / steps["free"] - 1)
    assert published["shorter"] == pytest.approx(
        1 - steps["the same in the pipeline"] / steps["half of a synchronous step"]
    )
    assert published["cost"] < published["goals"]["cost"]
    assert published["shorter"] >= published["goals"]["shorter"]
