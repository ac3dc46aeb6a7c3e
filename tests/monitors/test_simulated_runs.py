"""The monitor on runs of the real scheduler in virtual time: it names what was made slow, and its advice helps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from watched_runs import Watched, watch

from swift_rlx.monitors import METRICS, read_timeline

BASE = Watched(steps=15)
RUNS = {
    "generation": replace(BASE, max_inflight=8),
    "the staleness bound": replace(BASE, generate_s=6.0, max_inflight=200, max_staleness=1),
    "taking turns": replace(BASE, max_staleness=0),
    "rewards": replace(BASE, score_s=6.0),
    "publishing weights": replace(BASE, export_s=2.0, workers=2),
    "evaluation": replace(BASE, evaluate_s=3.0, workers=2),
    "the trainer's work between its steps": replace(BASE, between_s=3.0, workers=2),
    "training": replace(BASE, generate_s=0.5, workers=4),
}


def _busy(result):
    return int(result.summary.split(" % busy")[0].rsplit(" ", 1)[1])


@pytest.mark.parametrize(("limit", "run"), RUNS.items(), ids=RUNS)
def test_the_summary_names_what_was_made_slow(limit, run, tmp_path):
    line, ledger = watch(run, tmp_path).summary.splitlines()
    assert f"limited by {limit} (" in line
    assert ledger.startswith("tokens: ")


@pytest.mark.parametrize(
    ("limit", "followed", "advice"),
    [
        ("generation", {"workers": 7}, "--rollout_workers 7 would feed"),
        ("the staleness bound", {"max_staleness": 3}, "raise --max_staleness (1)"),
        ("taking turns", {"max_staleness": 1}, "set --max_staleness 1 or more"),
        ("training", {"workers": 1}, "fit on 1 worker"),
    ],
)
def test_following_the_advice_helps(limit, followed, advice, tmp_path):
    before = watch(RUNS[limit], tmp_path / "before")
    after = watch(replace(RUNS[limit], **followed), tmp_path / "after")
    assert advice in before.summary
    if limit == "training":
        assert _busy(after) == _busy(before) == 100
    else:
        assert _busy(after) > 1.3 * _busy(before)


def test_the_files_of_a_run_agree_with_what_happened(tmp_path):
    result = watch(replace(BASE, workers=2, score_s=0.2, export_s=0.1), tmp_path)
    events = read_timeline(tmp_path / "timeline.json")
    processes = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert set(processes.values()) == {"trainer", "rewards", "worker-0", "worker-1"}
    spans = [event for event in events if event["ph"] == "X"]
    for event in events:  # Perfetto's reader takes no other values, and wants a time before the details
        values = {**event, **event.get("args", {})}
        assert all(isinstance(value, (str, int, float)) for name, value in values.items() if name != "args")
        assert list(event).index("ts") < list(event).index("args")
    names = [span["name"] for span in spans]
    assert sum(name.startswith("train ") for name in names) == 15
    assert sum(name.startswith("load 0.") for name in names) == 2 * 14
    answers = [span for span in spans if span["name"].startswith("prompt ")]
    assert len(answers) == len({span["name"] for span in answers}) >= 15 * 8 * 4
    for span in answers:
        details = span["args"]
        assert details["worker"] == processes[span["pid"]]
        assert details["submit_s"] <= details["start_s"] <= details["first_token_s"] <= details["finish_s"]
        oldest, newest = (int(details[name].split(".")[1]) for name in ("version_min", "version_max"))
        assert oldest <= newest <= oldest + details["staleness"]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines] == [5, 10, 15]
    assert [line["values"] for line in lines] == result.lines
    assert set(result.lines[-1]) == set(METRICS)
    assert result.lines[-1]["rollout/staleness_max"] <= 2
    assert result.monitor.progress(result.statistics).startswith("rollout ")
