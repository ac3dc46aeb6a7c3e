"""The benchmark of shared prompts runs and reports; how much they save, depends on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("shared_prompt.py")


@pytest.mark.slow
def test_the_benchmark_of_shared_prompts_compares_equal_results(tiny_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "shared_prompt.json"
    command = [
        sys.executable,
        str(SCRIPT),
        "--model",
        str(tiny_model),
        "--pairs",
        "1",
        "--output",
        str(output),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "times as fast" in result.stdout
    found = json.loads(output.read_text(encoding="utf-8"))
    assert 2 * found["tokens"]["shared"] < found["tokens"]["plain"]
    assert 0 < max(found["apart"].values()) < 1e-3
    assert (
        min(found[name][f"{part}_ms"] for name in ("plain", "shared") for part in ("forward", "backward")) > 0
    )
