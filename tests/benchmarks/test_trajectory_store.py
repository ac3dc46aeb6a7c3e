"""The benchmark of the store runs and reports; how fast it is, is judged by the script alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("trajectory_store.py")


@pytest.mark.slow
def test_the_store_benchmark_measures_all_four_things(tmp_path):
    output = tmp_path / "store.json"
    sizes = ["--rows", "400", "--short-rows", "16384", "--kills", "3"]
    command = [sys.executable, str(SCRIPT), *sizes, "--work", str(tmp_path), "--output", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode in (0, 1), result.stderr
    written = json.loads(output.read_text(encoding="utf-8"))
    assert (written["size"]["rows"], written["epoch"]["rows"], written["loaded"]["rows"]) == (
        400,
        16384,
        16384,
    )
    assert written["epoch"]["peak_mb"] > 0
    assert all(f"\n{name}" in f"\n{result.stdout}" for name in ("size", "rows", "epoch", "kills"))


def test_the_published_numbers_of_the_store_are_within_their_limits():
    published = json.loads((SCRIPT.parent / "results" / "trajectory_store.json").read_text(encoding="utf-8"))
    assert published["limits"] == {"megabytes": 250.0, "rows_64_ms": 1.0, "epoch_memory_share": 0.15}
    size, kills = published["size"], published["kills"]
    assert size["rows"] == 100_000
    assert 240 < size["tokens_per_row"] < 260
    assert size["megabytes"] < 250
    assert published["rows"]["rows_64_ms"] < 1
    assert published["epoch"]["rows"] == published["loaded"]["rows"] >= 10_000_000
    assert published["epoch"]["memory_share"] < 0.15
    assert published["parquet"]["rows"] == published["epoch"]["rows"]
    assert published["parquet"]["peak_mb"] > published["epoch"]["peak_mb"]
    assert kills["kills"] == 200
    assert kills["readable_rows"] == kills["rows_of_sealed_rounds"] > 0
    assert (kills["double_rows"], kills["damaged_shards"]) == (0, 0)
