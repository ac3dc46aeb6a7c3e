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
