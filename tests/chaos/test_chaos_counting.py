"""What is counted in the training step adds up to what a run lost and doubled; the table judges it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import server_faults
from fault_table import FaultRow, joined, read_rows, table
from leftovers import MARK, Traces
from lineage import judge, read_lines, samples_of, surviving


def line(
    life: int, step: int, *prompts: int, batch: str = "", tokens: int = 5, **more: int
) -> dict[str, Any]:
    """A micro-batch with two samples of each prompt."""
    rows = [{"prompt": one, "ids": 10 * one + copy, "tokens": tokens} for one in prompts for copy in (0, 1)]
    known = {"repeated": 0, "unfinished": 0, "oldest": step}
    return {"life": life, "step": step, "batch": batch or f"batch {prompts}", "rows": rows, **known, **more}


EXPECTED = Counter({0: 2, 1: 2, 2: 2})


def test_a_run_without_a_break_trains_what_it_has_to() -> None:
    trained = judge([line(1, 0, 2), line(1, 1, 0), line(1, 2, 1, repeated=7)], EXPECTED)
    assert (trained.lost, trained.doubled, trained.steps, trained.tokens, trained.oldest) == (0, 0, 3, 30, 2)
    assert (trained.repeated_tokens, trained.replayed_otherwise) == (7, 0)


def test_what_came_after_the_checkpoint_of_a_resume_belongs_to_the_later_start() -> None:
    lines = [line(1, 0, 0), line(1, 1, 1), line(1, 2, 2), line(2, 1, 1), line(2, 2, 2)]
    assert [(one["life"], one["step"]) for one in surviving(lines)] == [(1, 0), (2, 1), (2, 2)]
    trained = judge(lines, EXPECTED)
    assert (trained.lost, trained.doubled, trained.replayed_otherwise) == (0, 0, 0)


def test_a_prompt_that_is_trained_on_both_sides_of_a_checkpoint_is_doubled_and_the_one_left_out_is_lost() -> (
    None
):
    trained = judge([line(1, 0, 0), line(1, 1, 1), line(2, 1, 0), line(2, 2, 2)], EXPECTED)
    assert (trained.lost, trained.doubled) == (2, 2)
    assert trained.replayed_otherwise == 1


def test_a_start_from_the_very_beginning_owes_the_earlier_one_nothing() -> None:
    lines = [line(1, 0, 0, unfinished=40), line(2, 0, 2), line(2, 1, 1), line(2, 2, 0, repeated=3)]
    trained = judge(lines, EXPECTED)
    assert (trained.lost, trained.doubled, trained.replayed_otherwise) == (0, 0, 0)
    assert trained.repeated_tokens == 43


def test_a_copy_that_fills_a_group_up_is_no_sample_and_an_answer_over_age_is_one() -> None:
    short = line(1, 0, 0)
    short["rows"][1] = short["rows"][0] | {"tokens": 0}
    assert samples_of(short) == Counter({0: 1})
    assert samples_of(line(1, 0, 0, tokens=0)) == Counter({0: 2})


def test_a_line_that_was_not_written_to_its_end_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text('{"step": 1}\n{"st', encoding="utf-8")
    assert read_lines(tmp_path / "lines") == [{"step": 1}]
    assert read_lines(tmp_path / "none") == []


def test_every_bar_that_is_missed_is_named() -> None:
    row = FaultRow(
        "kill", tries=3, noticed_s=[0.1, 2.5], recovered_s=[61.0], lost=1, wrong=["left behind: x"]
    )
    assert row.misses() == [
        "kill: left behind: x",
        "kill: 1 samples lost, 0 doubled",
        "kill: noticed after 2.50 s, 2 s are allowed",
        "kill: recovered from after 61.00 s, 60 s are allowed",
    ]
    assert FaultRow("kill").misses() == ["kill: not tried"]
    assert FaultRow("kill", tries=1).misses() == ["kill: tried, and never seen to be noticed"]
    assert FaultRow("kill", None, tries=1, noticed_s=[9.0], recovered_s=[1.0]).misses() == []


def test_the_table_has_a_line_for_each_fault() -> None:
    shown = table([FaultRow("kill", tries=3, noticed_s=[0.1, 0.25], notes=["a note"])]).splitlines()
    assert len(shown) == 3
    assert shown[1].split() == ["kill", "3", "0", "0.25", "-", "0", "0", "0"]
    assert shown[2].strip() == "a note"


def test_a_result_can_be_added_to(tmp_path: Path) -> None:
    first = FaultRow("kill", None, tries=2, noticed_s=[0.5, 0.25], lost=1, wrong=["x"], runs=1)
    (tmp_path / "part.json").write_text(json.dumps({"faults": [first.record()]}), encoding="utf-8")
    more = [
        FaultRow("stop", tries=1),
        FaultRow("kill", None, tries=3, noticed_s=[0.1], recovered_s=[9.0], runs=1),
    ]
    kill, stop = joined(read_rows(tmp_path / "part.json"), more)
    assert (kill.tries, kill.noticed_s, kill.recovered_s) == (5, [0.25, 0.5, 0.1], [9.0])
    assert (kill.lost, kill.wrong, kill.runs, kill.notice_limit_s) == (1, ["x"], 2, None)
    assert stop.tries == 1
    assert read_rows(tmp_path / "none.json") == []


RETITLED = """
import subprocess
from multiprocessing import resource_tracker, shared_memory

resource_tracker.register = lambda *a: None
kept = shared_memory.SharedMemory(create=True, size=4096)
child = subprocess.Popen(["sleep", "600"], env={})
print(kept.name, child.pid, flush=True)
input()
"""


def test_what_a_run_leaves_behind_is_found_by_its_mark_and_by_its_session() -> None:
    traces = Traces("of this test")
    words, environment = [sys.executable, "-c", RETITLED], os.environ | {MARK: traces.mark}
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as run:
        assert run.stdout is not None
        name, unmarked = run.stdout.readline().split()
        segment = Path("/dev/shm", name)
        both, deadline = {run.pid, int(unmarked)}, time.monotonic() + 10
        while (found := traces.look().keys()) != both and time.monotonic() < deadline:
            time.sleep(0.01)  # the second one is still becoming another program
        assert found == both
        assert len(traces.left(0.0)) == 3
        run.kill()
    assert traces.left(0.0) == [f"process {unmarked}: sleep 600 ", str(segment)]
    os.kill(int(unmarked), signal.SIGKILL)
    segment.unlink()
    assert traces.left() == []


@pytest.mark.parametrize(
    ("kind", "sent", "ended", "since_s", "mid_answer"),
    [
        ("", [1.0, 2.0], [1.5], 10.0, 1),
        ("", [1.0, 2.0, 14.0], [1.5, 2.5], 14.0, 0),
        ("", [1.0], [1.5], 15.0, 0),
        ("500", [1.0, 11.0, 12.0], [], 11.0, 0),
    ],
)
def test_a_fault_can_be_noticed_from_the_first_request_that_meets_it(
    kind: str, sent: list[float], ended: list[float], since_s: float, mid_answer: int
) -> None:
    times = {"sent": sent, "ended": ended}
    run = SimpleNamespace(events=lambda what, worker: [{"at_s": at} for at in times[what]])
    server, row = SimpleNamespace(url="http://a:1"), FaultRow("x")
    breaking = server_faults.Breaking(run, [server], Path("x"), random.Random(1))  # type: ignore[arg-type,list-item]
    fault = server_faults.ServerFault("x", kind)
    assert breaking._noticeable_s(fault, server, 10.0, 15.0, row) == since_s  # type: ignore[arg-type]
    assert row.mid_answer == mid_answer


@pytest.mark.parametrize(
    ("got", "others", "is_wrong"), [(2, 100, False), (3, 100, True), (3, 400, False), (5, 400, True)]
)
def test_a_server_that_fails_at_once_may_be_tried_twice_and_then_gets_no_share_of_the_requests(
    tmp_path: Path, got: int, others: int, is_wrong: bool
) -> None:
    class Server(SimpleNamespace):
        __hash__ = object.__hash__

    servers = []
    for name, count in (("broken", got), ("well", others)):
        path = tmp_path / name
        path.write_text('{"at_s": 5.0, "fault": ""}\n' * count, encoding="utf-8")
        servers.append(Server(requests=path, url=name))
    row = FaultRow("x")
    breaking = server_faults.Breaking(None, servers, Path("x"), random.Random(1))  # type: ignore[arg-type]
    breaking._judge_share(servers[0], 1.0, 9.0, row)  # type: ignore[arg-type]
    assert bool(row.wrong) is is_wrong
