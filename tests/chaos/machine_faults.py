"""Faults around the training: a reward that fails on a row, a disk that is full, a wall clock that jumps."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from fault_table import RECOVERY_S, FaultRow
from swift_run import HERE, SwiftRun
from worker_faults import END_S, START_S

NewRun = Callable[..., SwiftRun]
DISK = "8m"
FULL_S = 5.0
"""How long the disk is full; the journal asks it for half a minute."""
HOUR_S = 3600
FOR_A_WHILE, FOR_GOOD = "disk full for a while", "disk full for good"


@dataclass(frozen=True)
class RewardFault:
    """`kind`: for `reward_faults`. `unscored`: samples that may not train, because they have no reward."""

    name: str
    kind: str
    unscored: int
    options: dict[str, int] = field(default_factory=dict)


REWARDS = (
    RewardFault("reward raises on a row", "raise", unscored=1),
    RewardFault("reward hangs on a row", "hang", unscored=4, options={"reward_timeout_s": 5}),
)


def reward_run(new_run: NewRun, fault: RewardFault, chance: random.Random, rows: dict[str, FaultRow]) -> None:
    """One run in which the reward fails once; rows without a reward do not train, as `--reward_on_error none` says."""
    run = new_run(
        options={
            "external_plugins": [str(HERE / "reward_faults.py")],
            "reward_funcs": ["fails_on_a_row"],
            "reward_on_error": "none",
        }
        | fault.options,
        variables={"CHAOS_REWARD": fault.kind, "CHAOS_ROW": ""},
    )
    run.variables["CHAOS_ROW"] = str(chance.randrange(run.task.prompts))
    row = rows.setdefault(fault.name, FaultRow(fault.name, notice_limit_s=None))
    row.tries += 1
    status = _to_its_end(run, lambda: None, row)
    failed = run.folder / "reward-failed"
    if not failed.exists():
        row.wrong.append("the reward was not asked for its row")
        return
    failed_s = float(failed.read_text(encoding="ascii"))
    if status == 0:
        trained = run.judge()
        unscored = min(trained.lost, fault.unscored)
        row.notes.append(f"{unscored} samples without a reward did not train")
        row.lost += trained.lost - unscored
        row.doubled += trained.doubled
        if later := [line["at_s"] for line in run.trained() if line["at_s"] > failed_s]:
            row.recovered_s.append(later[0] - failed_s)
    else:
        row.wrong.append(f"the run ended with status {status}; {run.tail()}")


def _to_its_end(run: SwiftRun, meanwhile: Callable[[], None], row: FaultRow) -> int:
    """Start it, do what is to be done once it trains, and wait for its end; the row is told what is left then."""
    with run:
        run.launch()
        assert run.wait(run.has_trained, START_S), f"it does not train; {run.tail()}"
        meanwhile()
        status = run.wait_end(END_S)
        row.note_leftovers(run)
    return status


# --- disk ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of a few megabytes. Raises `CalledProcessError` where this user may not mount one."""
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Write until nothing fits any more; the file that takes the room."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"0"):
            pass
    return filler


def full_disk_run(new_run: NewRun, chance: random.Random, rows: dict[str, FaultRow]) -> None:
    """The disk of the output directory is full: between two checkpoints, when only the journal writes; and for good.

    ms-swift's own log and its checkpoints need room and end the run without it.
    """
    row = rows.setdefault(FOR_A_WHILE, FaultRow(FOR_A_WHILE, notice_limit_s=None))
    run = new_run(options={"save_steps": 10, "logging_steps": 1000})
    run.task = replace(run.task, step_s=1.0)  # a checkpoint is further away than the disk is full
    with small_disk(run.output):
        _full_for_a_while(run, chance, row)
    row = rows.setdefault(FOR_GOOD, FaultRow(FOR_GOOD, notice_limit_s=None))
    run = new_run()
    with small_disk(run.output):
        _full_for_good(run, chance, row)


def _full_for_a_while(run: SwiftRun, chance: random.Random, row: FaultRow) -> None:
    free_s = 0.0

    def full() -> None:
        nonlocal free_s
        assert run.wait(run.newest_checkpoint, START_S), f"it makes no checkpoint; {run.tail()}"
        time.sleep(chance.uniform(0.0, 1.0))
        filler = fill(run.output)
        time.sleep(FULL_S)
        filler.unlink()
        free_s = time.monotonic()

    row.tries += 1
    status = _to_its_end(run, full, row)
    row.recovered_s += [line["at_s"] - free_s for line in run.trained() if line["at_s"] > free_s][:1]
    row.conclude(run, status)
    if "the journal tries it again" not in run.log.read_text(errors="replace"):
        row.wrong.append("the journal did not meet the full disk")


def _full_for_good(run: SwiftRun, chance: random.Random, row: FaultRow) -> None:
    took_s = 0.0

    def full() -> None:
        nonlocal took_s
        time.sleep(chance.uniform(0.5, 3.0))
        fill(run.output)
        full_s = time.monotonic()
        run.wait(lambda: False, 2 * RECOVERY_S)
        took_s = time.monotonic() - full_s

    row.tries += 1
    row.runs += 1
    status = _to_its_end(run, full, row)
    row.recovered_s.append(took_s)
    row.notes.append("it ends with the error of the system")
    if status in (0, None) or "No space left on device" not in run.tail(20_000):
        row.wrong.append(f"the run does not end with the words of the system; {run.tail()}")


# --- clock -----------------------------------------------------------------------------------------------------------


def moved_clock_run(new_run: NewRun, chance: random.Random, rows: dict[str, FaultRow]) -> None:
    """The wall clock of all processes of a run jumps an hour forward, and later two hours back."""
    row = rows.setdefault("clock jumps", FaultRow("clock jumps", notice_limit_s=None))
    row.tries += 1
    run = new_run()
    clock = run.folder / "clock"
    paths = [str(HERE / "moved_clock"), *filter(None, [os.environ.get("PYTHONPATH")])]
    run.variables |= {"CHAOS_CLOCK": str(clock), "PYTHONPATH": os.pathsep.join(paths)}
    jumped_s: list[float] = []

    def jump() -> None:
        for seconds in (HOUR_S, -HOUR_S):
            time.sleep(chance.uniform(0.5, 2.0))
            clock.write_text(str(seconds), encoding="ascii")
            jumped_s.append(time.monotonic())

    status = _to_its_end(run, jump, row)
    steps = [line["at_s"] for line in run.trained()]
    for at_s in jumped_s:
        row.recovered_s += [step_s - at_s for step_s in steps if step_s > at_s][:1]
    row.conclude(run, status)
