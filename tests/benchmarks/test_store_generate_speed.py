"""The benchmark of candidates runs and reports; how fast it is, is judged by the script alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("store_generate.py")


@pytest.mark.slow
def test_the_benchmark_of_candidates_compares_both_ways(tmp_path):
    output = tmp_path / "store_generate.json"
    sizes = ["--prompts", "6", "--candidates", "2", "--tokens", "4", "--share", "0.3"]
    command = [sys.executable, str(SCRIPT), *sizes, "--output", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode in (0, 1), result.stderr
    written = json.loads(output.read_text(encoding="utf-8"))
    assert (written["store generate"]["answers"], written["one at a time"]["answers"]) == (12, 4)
    for way in ("store generate", "one at a time"):
        assert 1 <= written[way]["tokens_per_answer"] <= 4
        assert f"{way:<16}" in result.stdout
    rates = [written[way]["answers_per_s"] for way in ("store generate", "one at a time")]
    assert written["ratio"] == pytest.approx(rates[0] / rates[1])


def test_the_published_numbers_reach_the_goal() -> None:
    published = json.loads((SCRIPT.parent / "results" / "store_generate.json").read_text(encoding="utf-8"))
    ways = published["store generate"], published["one at a time"]
    assert ways[0]["answers"] == 4000
    assert published["ratio"] == pytest.approx(ways[0]["answers_per_s"] / ways[1]["answers_per_s"])
    assert published["ratio"] >= 15
