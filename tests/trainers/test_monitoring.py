"""A real run on the pipeline shows itself: log, files, completions table, last lines."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace

import pipeline_runs
import pytest
import runs

from swift_rlx.backends import WeightUpdate
from swift_rlx.monitors import COLUMNS, METRICS, Phase, read_timeline

STEPS = 7


@pytest.fixture(scope="module")
def finished(tiny_model, tmp_path_factory):
    """A run of seven steps, with evaluation and a checkpoint: its output directory and its log records."""
    folder = tmp_path_factory.mktemp("monitoring")
    data = folder / "rows.jsonl"
    rows = [{"messages": [{"role": "user", "content": f"Say {row}"}], "row": row} for row in range(16)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger("swift")
    logger.addHandler(handler)
    try:
        pipeline_runs.train(
            tiny_model,
            data,
            folder / "out",
            max_steps=STEPS,
            val_dataset=[str(data)],
            eval_strategy="steps",
            eval_steps=4,
            per_device_eval_batch_size=4,
            save_strategy="steps",
            save_steps=4,
            log_completions=True,
        )
    finally:
        logger.removeHandler(handler)
    return folder / "out", records


def _spans(output: Path) -> dict[str, list[str]]:
    events = read_timeline(output / "rlx" / "timeline.json")
    lanes = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    spans: dict[str, list[str]] = {}
    for one in events:
        if one["ph"] == "X":
            spans.setdefault(lanes[one["tid"]].split()[0], []).append(one["name"])
    return spans


class Started:
    """A trainer whose workers can only drain."""

    args = SimpleNamespace(max_staleness=2, weight_update="auto")

    def _start_pipeline(self):
        counters = SimpleNamespace(tokens={}, failovers=0, max_inflight={"worker-0": 64}, away_s=0.0)
        thread = SimpleNamespace(statistics=lambda: counters)
        self.pipeline = SimpleNamespace(weight_update=WeightUpdate.DRAIN, thread=thread)


def test_the_advice_is_about_what_the_workers_can_and_not_about_auto(tmp_path):
    from swift_rlx.trainers.monitoring import MonitoringMixin

    class Trainer(MonitoringMixin, Started):
        def __init__(self):
            self.monitor = None

    trainer = Trainer()
    monitor, now_s = trainer.start_monitor(tmp_path, 1, None), time.monotonic()
    trainer._start_pipeline()
    for step in range(1, 9):
        monitor.trained(now_s + 10 * step, now_s + 10 * step + 8, step, Phase.WAIT)
        monitor.trained(now_s + 10 * step + 8, now_s + 10 * step + 10, step)
    summary = monitor.summary(trainer.pipeline.thread.statistics())
    monitor.close()
    assert "limited by the staleness bound" in summary
    assert "or use a backend that can keep answers in flight" in summary


@pytest.mark.slow
def test_the_start_says_what_publishing_does_to_answers_in_flight(finished):
    _, records = finished
    assert "answers in flight when weights are published: keep (--weight_update auto)" in records


@pytest.mark.slow
def test_the_timeline_has_what_the_run_did(finished):
    spans = _spans(finished[0])
    assert set(spans) == {"trainer", "vowels", "answers", "weights"}
    counts = {phase: sum(name.startswith(phase.value) for name in spans["trainer"]) for phase in Phase}
    micro_batches = runs.FAST["gradient_accumulation_steps"]
    assert counts == {
        Phase.WAIT: STEPS,
        Phase.TRAIN: STEPS * (micro_batches + 1),
        Phase.PUBLISH: STEPS - 1,
        Phase.EVALUATE: 2,
        Phase.SAVE: 2,
    }
    assert spans["weights"][:3] == ["load 0.1", "load 0.2", "load 0.3"]
    assert len(spans["answers"]) >= STEPS * 8


@pytest.mark.slow
def test_the_metrics_are_in_the_log_and_in_the_file(finished):
    output, _ = finished
    lines = [line for line in runs.log_lines(output) if "loss" in line]
    filed = [json.loads(line) for line in (output / "rlx" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in filed] == list(range(1, STEPS + 1))
    for logged, line in zip(lines, filed, strict=True):
        assert {name: float(logged[name]) for name in line["values"]} == pytest.approx(
            line["values"], rel=1e-3, abs=1e-6
        )
    assert {name for line in filed for name in line["values"]} == set(METRICS)


@pytest.mark.slow
def test_the_completions_say_who_made_them(finished):
    output, _ = finished
    (table,) = output.rglob("completions.jsonl")
    rows = [json.loads(line) for line in table.read_text(encoding="utf-8").splitlines()]
    trained = rows[0]
    assert set(COLUMNS) <= set(trained)
    assert all(len(trained[name]) == len(trained["completion"]) for name in COLUMNS)
    assert set(trained["worker"]) == {"worker-0"}
    assert set(trained["policy_version_min"]) == {"0.0"}
    assert set(trained["reward_versions"]) == {"vowels=1"}


@pytest.mark.slow
def test_the_last_lines_say_what_limited_the_run_and_where_the_tokens_went(finished):
    _, records = finished
    (summary,) = [text for text in records if text.startswith("rollout: ")]
    (ledger,) = [text for text in records if text.startswith("tokens: ")]
    assert summary.startswith(f"rollout: {STEPS} steps, ")
    assert " busy, limited by " in summary
    assert "trained " in ledger
    progress = [text for text in records if text.startswith("rollout ")]
    assert len(progress) == STEPS
