"""The benchmark of the start cost runs and reports; how long a start takes is judged by the script alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("start_cost.py")


@pytest.mark.slow
def test_the_start_cost_benchmark_measures_every_kind(tmp_path):
    output = tmp_path / "start_cost.json"
    command = [sys.executable, str(SCRIPT), "--pairs", "4", "--output", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode in (0, 1), result.stderr
    written = json.loads(output.read_text(encoding="utf-8"))
    assert list(written["kinds"]) == ["bare", "installed", "installed, no .pyc", "start", "start, no .pyc"]
    assert written["kinds"]["bare"]["min_ms"] > 1
    assert all(f"\n{kind:<20}" in result.stdout for kind in list(written["kinds"])[1:])


def test_the_published_start_cost_is_under_its_limit():
    published = json.loads((SCRIPT.parent / "results" / "start_cost.json").read_text(encoding="utf-8"))
    assert published["pairs"] >= 400
    for kind in ("installed", "installed, no .pyc"):
        assert published["kinds"][kind]["added_median_ms"] < published["limit_ms"] == 1.0
