"""The benchmark of the journal runs and reports; what the journal costs, is judged by the script alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("journal_cost.py")


@pytest.mark.slow
def test_the_journal_benchmark_measures_each_rate(tmp_path):
    output = tmp_path / "journal_cost.json"
    command = [sys.executable, str(SCRIPT), "--seconds", "1", "--rounds", "1", "--output", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode in (0, 1), result.stderr
    rates = json.loads(output.read_text(encoding="utf-8"))["rates"]
    assert [one["answers_per_s"] for one in rates] == [80, 400]
    for one in rates:
        assert f"{one['answers_per_s']:4d} answers/s" in result.stdout
        assert 0 < one["share"] < 1
        assert one["bytes_per_answer"] > 250 * 2 * 4, "token ids and log-probs of each"


def test_the_published_numbers_of_the_journal_are_within_their_limit():
    published = json.loads((SCRIPT.parent / "results" / "journal_cost.json").read_text(encoding="utf-8"))
    assert published["limits"] == {"share": 0.01}
    assert [one["answers_per_s"] for one in published["rates"]] == [80, 400]
    assert all(one["share"] < 0.01 for one in published["rates"])
