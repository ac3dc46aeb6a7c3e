"""metrics.jsonl: one whole line for each logging step, whatever happened before."""

from __future__ import annotations

import json

from swift_rlx.monitors.metrics_file import MetricsFile


def _lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_call_is_a_line_that_is_there_at_once(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    file = MetricsFile(path)
    file.write(3, 1000.5, {"rollout/wait_s": 0.25, "a": float("nan"), "b": float("inf")})
    assert _lines(path) == [
        {"step": 3, "time": 1000.5, "values": {"rollout/wait_s": 0.25, "a": None, "b": None}}
    ]
    file.write(4, 1001.5, {})
    assert [line["step"] for line in _lines(path)] == [3, 4]
    file.close()
    file.close()


def test_a_resumed_run_goes_on_below_and_ends_a_half_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path)
    first.write(1, 0.0, {})
    first.close()
    with path.open("ab") as torn:
        torn.write(b'{"step": 2, "ti')
    second = MetricsFile(path)
    second.write(2, 1.0, {})
    second.close()
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(lines[at])["step"] for at in (0, 2)] == [1, 2]
    assert len(lines) == 3


def test_a_disk_that_refuses_ends_the_file_with_one_warning(tmp_path, caplog):
    class Full:
        def write(self, line):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.close()
    file._file = Full()
    for step in range(3):
        file.write(step, 0.0, {})
    (record,) = caplog.records
    assert "metrics.jsonl' ends here" in record.message
    assert "No space left on device" in record.message
