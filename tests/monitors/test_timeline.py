"""The timeline: valid JSON at any moment, bounded, and nothing that a full disk could stop."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swift_rlx.errors import ConfigError
from swift_rlx.monitors import Timeline, read_timeline
from swift_rlx.monitors.timeline import MIN_BYTES
from swift_rlx.monitors.timeline_parts import TimelineParts

STARTED = datetime(2026, 1, 2, tzinfo=timezone.utc)


def _timeline(folder, **options):
    return Timeline(folder / "timeline.json", start_s=100.0, started=STARTED, **options)


def _spans(events):
    return [event for event in events if event["ph"] == "X"]


def test_a_span_is_an_event_in_microseconds_since_the_start_of_the_run(tmp_path):
    timeline = _timeline(tmp_path)
    timeline.span("worker-0", "answers", "prompt 0/7 #1", 101.5, 103.25, {"tokens": 12})
    timeline.counter("trainer", "inflight", 102.0, 5.0)
    timeline.close()
    events = json.loads((tmp_path / "timeline.json").read_text(encoding="utf-8"))
    (span,) = _spans(events)
    assert (span["name"], span["ts"], span["dur"]) == ("prompt 0/7 #1", 1_500_000, 1_750_000)
    assert span["args"] == {"tokens": 12}
    (counter,) = [event for event in events if event["ph"] == "C"]
    assert (counter["ts"], counter["args"]) == (2_000_000, {"value": 5.0})
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {span["pid"]: "worker-0", counter["pid"]: "trainer"}
    labels = [event["args"]["labels"] for event in events if event["name"] == "process_labels"]
    assert labels == ["started 2026-01-02T00:00:00.000+00:00"] * 2


def test_answers_at_once_get_rows_of_their_own_and_free_rows_are_used_again(tmp_path):
    timeline = _timeline(tmp_path)
    for start, finish in ((100, 103), (101, 104), (103, 105), (100, 106)):
        timeline.span("worker-0", "answers", "x", start, finish)
    timeline.span("worker-1", "answers", "x", 100, 103)
    timeline.close()
    events = read_timeline(tmp_path / "timeline.json")
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [names[span["tid"]] for span in _spans(events)] == [
        "answers",
        "answers 2",
        "answers",
        "answers 3",
        "answers",
    ]
    assert len(names) == 4


def test_what_began_before_the_run_is_drawn_from_its_start(tmp_path):
    timeline = _timeline(tmp_path)
    timeline.span("worker-0", "answers", "x", 0.0, 101.0)
    timeline.span("worker-0", "answers", "y", 103.0, 102.0)
    timeline.close()
    assert [(span["ts"], span["dur"]) for span in _spans(read_timeline(tmp_path / "timeline.json"))] == [
        (0, 1_000_000),
        (3_000_000, 0),
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_that_is_cut_at_any_byte_loads_up_to_its_last_whole_line(tmp_path, data):
    timeline = _timeline(tmp_path)
    names = data.draw(st.lists(st.text('a"\\\n,{]é漢', max_size=6), min_size=1, max_size=6))
    for at, name in enumerate(names):
        timeline.span(name, "lane", name, 100 + at, 101 + at, {"text": name})
    timeline.close()
    path = tmp_path / "timeline.json"
    whole = path.read_bytes()
    events = json.loads(whole)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    lines = whole[:cut].count(b"\n")
    assert read_timeline(path) == events[: max(lines - 1, 0)]


def test_many_events_stay_within_the_bound_and_the_first_and_last_are_kept(tmp_path):
    timeline = _timeline(tmp_path, max_bytes=MIN_BYTES)
    count = 6_000
    for at in range(count):
        timeline.span("worker-0", "answers", f"answer {at}", 100 + at, 101 + at)
        if at % 500 == 0:
            timeline.flush()
            assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= MIN_BYTES
    timeline.close()
    files = {file.name: json.loads(file.read_bytes()) for file in tmp_path.iterdir()}
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= MIN_BYTES
    found = {
        name: [int(span["name"].split()[1]) for span in _spans(events)] for name, events in files.items()
    }
    assert found["timeline.start.json"][0] == 0
    newest = found["timeline.previous.json"] + found["timeline.json"]
    assert newest == list(range(newest[0], count))
    for events in files.values():
        assert {"worker-0"} == {one["args"]["name"] for one in events if one["name"] == "process_name"}
        assert events[-1]["name"] == "end of file"
    assert timeline.left_out == 0


def test_a_timeline_that_an_earlier_process_left_is_kept(tmp_path):
    first = _timeline(tmp_path)
    first.span("trainer", "trainer", "first start", 100, 101)
    first.flush()  # and then it is killed
    second = _timeline(tmp_path)
    second.span("trainer", "trainer", "second start", 100, 101)
    second.close()
    third = _timeline(tmp_path)
    third.close()
    parts = ("timeline.start.json", "timeline.previous.json", "timeline.json")
    spans = [[span["name"] for span in _spans(read_timeline(tmp_path / name))] for name in parts]
    assert spans == [["first start"], ["second start"], []]


def test_events_reach_the_file_without_a_call(tmp_path, monkeypatch):
    monkeypatch.setattr("swift_rlx.monitors.timeline.WRITE_EVERY_S", 0.01)
    timeline = _timeline(tmp_path)
    timeline.span("trainer", "trainer", "x", 100, 101)
    seen = threading.Event()
    for _ in range(500):
        if _spans(read_timeline(tmp_path / "timeline.json")):
            break
        seen.wait(0.01)
    else:
        pytest.fail("the event was not written within 5 s")
    timeline.close()


def test_threads_may_report_at_once(tmp_path):
    timeline = _timeline(tmp_path)

    def report(worker):
        for at in range(300):
            timeline.span(worker, "answers", f"{at}", 100 + at, 101.5 + at)
            if at % 50 == 0:
                timeline.flush()

    threads = [threading.Thread(target=report, args=(f"worker-{at}",)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.close()
    events = read_timeline(tmp_path / "timeline.json")
    assert len(_spans(events)) == 1200
    tids = {(event["pid"], event["tid"]) for event in _spans(events)}
    assert len(tids) == len({tid for _, tid in tids}) == 8


def test_a_disk_that_refuses_ends_the_timeline_with_one_warning(tmp_path, monkeypatch, caplog):
    timeline = _timeline(tmp_path)

    def full(lines, end):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(timeline._parts, "write", full)
    for _ in range(3):
        timeline.span("trainer", "trainer", "x", 100, 101)
        timeline.flush()
    timeline.close()
    (record,) = caplog.records
    assert "No space left on device" in record.message


def test_a_disk_that_stands_still_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("swift_rlx.monitors.timeline.MAX_PENDING_BYTES", 2000)
    timeline = _timeline(tmp_path)
    with timeline._disk:
        for at in range(100):
            timeline.span("trainer", "trainer", "x", 100 + at, 101 + at)
    timeline.close()
    events = read_timeline(tmp_path / "timeline.json")
    assert 0 < len(_spans(events)) < 30
    assert timeline.left_out == 100 - len(_spans(events)) == events[-1]["args"]["left_out"]


def test_what_comes_after_the_end_is_ignored(tmp_path):
    timeline = _timeline(tmp_path)
    timeline.close()
    before = (tmp_path / "timeline.json").read_bytes()
    timeline.span("trainer", "trainer", "x", 100, 101)
    timeline.close()
    assert (tmp_path / "timeline.json").read_bytes() == before


def test_too_small_a_timeline_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"10 bytes is refused: give it at least 65536"):
        _timeline(tmp_path, max_bytes=10)


def test_a_disk_that_stands_still_does_not_hold_up_the_end(tmp_path, monkeypatch, caplog):
    goes_on = threading.Event()
    write = TimelineParts.write

    def stand_still(self, lines, end):
        goes_on.wait(60.0)
        write(self, lines, end)

    monkeypatch.setattr(TimelineParts, "write", stand_still)
    timeline = _timeline(tmp_path, close_limit_s=0.05)
    timeline.span("worker-0", "answers", "x", 101.0, 102.0)
    timeline.close()
    timeline.close()
    assert timeline._writer.is_alive()
    goes_on.set()
    timeline._writer.join(60.0)
    assert (
        caplog.text.count("the end of the timeline is not written: its disk has stood still for 0.05 s") == 1
    )
    assert len(_spans(read_timeline(tmp_path / "timeline.json"))) == 1
