"""A bounded part of the chaos suite: real runs of `swift rlhf` whose workers, trainer and servers are broken.

`make chaos` does the same many times over, and judges times as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fault_table import FaultRow
from server_faults import FAULTS, SECRET, VARIABLE, Breaking, options, servers_of
from swift_run import SwiftRun, Task
from tiny_llama import save_tiny_llama
from trainer_faults import NAME, killed_run
from worker_faults import KILL, Disturbance

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SEED = 4
KILLS_OF_WORKERS, KILLS_OF_THE_TRAINER = 6, 2


@pytest.fixture
def rows() -> Iterator[dict[str, FaultRow]]:
    """By fault; in the end nothing of them was lost, doubled or left behind. Times are judged by `make chaos`."""
    found: dict[str, FaultRow] = {}
    yield found
    for row in found.values():
        assert row.tries > 0
        assert (row.wrong, row.lost, row.doubled) == ([], 0, 0), row.fault


def test_workers_that_are_killed_at_random_moments_cost_no_sample(
    tiny_model: Path, tmp_path: Path, rows: dict[str, FaultRow]
) -> None:
    run = SwiftRun(tmp_path / "run", Task(tiny_model, epochs=3, step_s=0.3))
    kills = Disturbance(run, random.Random(SEED), gap_s=1.5).live([KILL], KILLS_OF_WORKERS, rows)
    assert kills >= KILLS_OF_WORKERS / 2, "the run ends when its prompts do"
    assert len(rows[KILL.name].noticed_s) >= kills / 2, "one may hit a run at its end"


def test_a_trainer_that_is_killed_at_random_moments_goes_on_with_the_same_samples(
    tiny_model: Path, tmp_path: Path, rows: dict[str, FaultRow]
) -> None:
    run = SwiftRun(tmp_path / "run", Task(tiny_model, epochs=2, workers=1, step_s=0.2))
    rows[NAME] = FaultRow(NAME, notice_limit_s=None)
    assert killed_run(run, KILLS_OF_THE_TRAINER, 1.5, random.Random(SEED), rows[NAME]) == KILLS_OF_THE_TRAINER
    assert run.life >= 3


def test_a_run_on_two_servers_outlives_all_that_they_can_do(
    tiny_model: Path, tmp_path: Path, rows: dict[str, FaultRow]
) -> None:
    other = tmp_path / "other"
    save_tiny_llama(other, seed=1)
    task = Task(tiny_model, epochs=8, step_s=0.3)
    quick = [replace(fault, hold_s=2.0, is_judged_by_share=False) for fault in FAULTS if fault.kind != "hang"]
    with servers_of(task, tmp_path / "servers") as servers:
        run = SwiftRun(tmp_path / "run", task, options(servers), {VARIABLE: SECRET})
        assert Breaking(run, servers, other, random.Random(SEED)).live(quick, rows) >= 4
    # Where the key was looked for, also in the words of a server that says it.
    written = {path.name for path in run.folder.rglob("*")}
    assert {"output.log", "timeline.json", "metrics.jsonl", "args.json"} <= written
    assert "with the key ***" in run.log.read_text(encoding="utf-8", errors="replace")
