"""The benchmark of the scheduler runs and reports; how fast it is, is judged by the script alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("scheduler_alone.py")


@pytest.mark.slow
def test_the_scheduler_benchmark_measures_throughput_and_memory(tmp_path):
    output = tmp_path / "scheduler_alone.json"
    command = [
        sys.executable,
        str(SCRIPT),
        "--completions",
        "10240",
        "--rounds",
        "1",
        "--output",
        str(output),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode in (0, 1), result.stderr
    written = json.loads(output.read_text(encoding="utf-8"))
    assert written["throughput"]["completions"] == 10240
    assert 0 < written["throughput"]["per_s"] <= 1.1 * written["throughput"]["per_cpu_s"]
    assert all(f"\n{name}" in f"\n{result.stdout}" for name in ("throughput", "added", "memory"))


def test_the_published_numbers_of_the_scheduler_are_within_their_limits():
    published = json.loads((SCRIPT.parent / "results" / "scheduler_alone.json").read_text(encoding="utf-8"))
    limits = published["limits"]
    assert limits == {"per_s": 5000.0, "added_ms": 1.0, "growth_mb": 8.0}
    assert published["throughput"]["per_s"] >= limits["per_s"]
    assert published["added"]["ms_per_request"] < limits["added_ms"]
    assert published["memory"]["completions"] >= 1_000_000
    assert abs(published["memory"]["growth_mb"]) < limits["growth_mb"]
