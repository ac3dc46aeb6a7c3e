"""The benchmark of publishing runs and reports; how fast it is, depends on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("publish_time.py")
CASES = {"adapter", "merged", "full"}


@pytest.mark.slow
def test_the_publish_benchmark_serves_what_it_publishes_in_every_case(
    tiny_model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "publish_time.json"
    command = [sys.executable, str(SCRIPT), "--model", str(tiny_model), "--engines", "transformers"]
    command += ["--rounds", "1", "--output", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    rows = json.loads(output.read_text(encoding="utf-8"))["published"]["transformers"]
    assert set(rows) == CASES
    for case, row in rows.items():
        assert f"transformers {case}" in result.stdout
        assert row["difference"] <= row["tolerance"] == 1e-3
        parts = [row[f"{part}_ms"] for part in ("probe", "write", "load", "check")]
        assert min(parts) > 0
        assert row["total_ms"] == pytest.approx(sum(parts))
    assert rows["adapter"]["mb"] < rows["merged"]["mb"] == pytest.approx(rows["full"]["mb"], rel=0.01)
