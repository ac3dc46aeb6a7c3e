"""The benchmark of reward services runs and reports; how fast they are, is judged by the script alone."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("reward_service.py")
RESULT = SCRIPT.parent / "results" / "reward_service.json"
REPOSITORY = SCRIPT.parents[2]
ROWS = {"README.md": ("a reward service", "not measured yet"), "README_zh.md": ("奖励服务：", "尚未测量")}
"""How the line of the figure begins, and what it says while there is none."""


@pytest.mark.slow
def test_the_benchmark_of_services_compares_calls_with_batches(tmp_path: Path) -> None:
    output = tmp_path / "reward_service.json"
    command = [sys.executable, str(SCRIPT), "--rounds", "1", "--calls", "40", "--output", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode in (0, 1), result.stderr
    found = json.loads(output.read_text(encoding="utf-8"))
    rates = found["rows_per_s_a_call_at_a_time"], found["rows_per_s_in_batches"]
    assert 0 < rates[0] <= 1000 * found["rows_a_call"] / (8 + 0.25 * found["rows_a_call"]), (
        "what the reward takes"
    )
    assert found["gain"] == pytest.approx(rates[1] / rates[0], rel=0.01)
    assert (found["rounds"], found["calls"], found["goals"]) == (1, 40, {"gain": 1.5})
    assert "rows_per_s_in_batches" in result.stdout


@pytest.mark.parametrize("page", ROWS)
def test_the_published_figure_reaches_the_goal_and_is_the_one_of_the_readme(page: str) -> None:
    start, unmeasured = ROWS[page]
    lines = (REPOSITORY / page).read_text(encoding="utf-8").splitlines()
    [row] = [line for line in lines if line.startswith(f"| {start}")]
    if not RESULT.exists():
        assert row.rstrip(" |").endswith(unmeasured)
        return
    published = json.loads(RESULT.read_text(encoding="utf-8"))
    assert (published["rounds"], published["calls"]) >= (5, 200), "the whole benchmark"
    assert published["goals"] == {"gain": 1.5}
    assert published["gain"] == pytest.approx(statistics.median(published["gains"]), abs=1e-3)
    assert published["gain"] >= published["goals"]["gain"]
    assert f"{published['gain']:.1f}" in row
    assert f"{published['rows_per_s_in_batches']:,.0f}" in row
