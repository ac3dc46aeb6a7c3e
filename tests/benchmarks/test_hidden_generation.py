"""The benchmark of hidden generation runs and reports; how busy the trainer is, is judged by the script alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("hidden_generation.py")
KINDS = ("busy", "wait", "publish", "other")


@pytest.mark.slow
def test_the_benchmark_of_hidden_generation_measures_every_kind_of_contestant(tmp_path):
    output = tmp_path / "hidden_generation.json"
    command = [sys.executable, str(SCRIPT), "--train-s", "0.2", "--steps", "5", "--latencies", "long-tailed"]
    command += ["--contestants", "one step ahead", "staleness 2", "--output", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode in (0, 1), result.stderr
    rows = json.loads(output.read_text(encoding="utf-8"))["runs"]["long-tailed"]
    assert list(rows) == ["synchronous", "one step ahead", "staleness 2"]
    for name, row in rows.items():
        assert f"long-tailed  {name:<16}" in result.stdout
        assert sum(row[kind] for kind in KINDS) == pytest.approx(1.0)
        assert row["busy"] > 0
        assert row["longest_train_s"] >= 0.2
    assert rows["synchronous"]["speed_up"] == 1.0
    assert [row["staleness_max"] for row in rows.values()][:2] == [0, 1]
    assert rows["synchronous"]["publish"] == 0.0 < rows["staleness 2"]["publish"]
    assert 0 < rows["staleness 2"]["staleness_max"] <= 2


def test_the_published_numbers_reach_the_goals():
    published = json.loads((SCRIPT.parent / "results" / "hidden_generation.json").read_text(encoding="utf-8"))
    goals = published["goals"]
    assert (goals["busy"], goals["speed_up"], goals["judged"]) == (0.96, 2.5, "staleness 2")
    assert list(published["runs"]) == ["constant", "long-tailed"]
    bounds = [f"staleness {bound}" for bound in (1, 2, 4, 8)]
    for rows in published["runs"].values():
        assert list(rows) == ["synchronous", "one step ahead", *bounds]
        assert rows["synchronous"]["busy"] == pytest.approx(1 / 2.6, abs=0.02)
        assert all(rows[name]["staleness_max"] <= int(name.split()[1]) for name in bounds)
        judged = rows[goals["judged"]]
        assert judged["busy"] >= goals["busy"]
        assert judged["speed_up"] >= goals["speed_up"]
        assert judged["speed_up"] > 1.4 * rows["one step ahead"]["speed_up"]
