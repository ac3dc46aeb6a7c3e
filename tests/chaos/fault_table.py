"""What the tries of each fault came to, and whether that is good enough."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lineage import Trained

if TYPE_CHECKING:
    from swift_run import SwiftRun

NOTICE_S = 2.0
"""Of a kill."""
RECOVERY_S = 60.0
MAX_STALENESS = 2
"""Optimizer steps: the default of --max_staleness."""
HEADINGS = (
    ("fault", 34),
    ("tries", 6),
    ("mid-answer", 11),
    ("noticed s", 10),
    ("recovered s", 12),
    ("lost", 6),
    ("doubled", 8),
    ("tokens twice", 13),
)
TIMES = ("noticed_s", "recovered_s")
FIXED = ("fault", "notice_limit_s")


@dataclass
class FaultRow:
    """All tries of one fault. `notice_limit_s`: None where there is nobody to notice it, as where the trainer dies.

    `noticed_s`, `recovered_s`: of the tries where that was seen; a run may end before. `mid_answer`: tries that hit a
    worker with answers under way. `wrong`: sentences about what else went wrong.
    """

    fault: str
    notice_limit_s: float | None = NOTICE_S
    tries: int = 0
    mid_answer: int = 0
    noticed_s: list[float] = field(default_factory=list)
    recovered_s: list[float] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0
    repeated_tokens: int = 0
    runs: int = 0
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, trained: Trained, steps: int) -> None:
        """A run has ended that had these tries."""
        self.runs += 1
        self.lost += trained.lost
        self.doubled += trained.doubled
        self.repeated_tokens += trained.repeated_tokens
        if trained.steps != steps:
            self.wrong.append(f"a run trained {trained.steps} steps in the place of {steps}")
        if trained.oldest > MAX_STALENESS:
            self.wrong.append(
                f"a token trained at a staleness of {trained.oldest}, {MAX_STALENESS} is the bound"
            )
        if trained.replayed_otherwise:
            self.wrong.append(f"{trained.replayed_otherwise} batches came back from the journal as others")

    def conclude(self, run: SwiftRun, status: int, touched: Collection[int] = ()) -> None:
        """A run with these tries has ended: as it should, with all that it had to train, and with nothing left.

        `touched`: the worker processes that were meant to end before it. To be called within the block of the run.
        """
        self.add(run.judge(), run.task.steps)
        for lost in run.events("lost"):
            if lost["pid"] not in touched:
                self.wrong.append(f"{lost['worker']} ended, and nobody had touched it: it {lost['reason']}")
        if status != 0:
            self.wrong.append(f"a run ended with status {status}; {run.tail()}")
        self.note_leftovers(run)

    def note_leftovers(self, run: SwiftRun) -> None:
        """What an ended run left behind, and where it wrote the key."""
        self.wrong += [f"left behind: {what}" for what in run.traces.left()]
        self.wrong += [f"the servers' key stands in {path}" for path in run.secrets_found()]

    def misses(self) -> list[str]:
        """What is not as it must be."""
        found = [f"{self.fault}: {sentence}" for sentence in self.wrong]
        if not self.tries:
            found.append(f"{self.fault}: not tried")
        elif self.notice_limit_s is not None and not self.noticed_s:
            found.append(f"{self.fault}: tried, and never seen to be noticed")
        if self.lost or self.doubled:
            found.append(f"{self.fault}: {self.lost} samples lost, {self.doubled} doubled")
        for what, times, limit_s in (
            ("noticed", self.noticed_s, self.notice_limit_s),
            ("recovered from", self.recovered_s, RECOVERY_S),
        ):
            if limit_s is not None and times and max(times) > limit_s:
                found.append(f"{self.fault}: {what} after {max(times):.2f} s, {limit_s:g} s are allowed")
        return found

    def record(self) -> dict[str, Any]:
        """For the JSON file: all that is needed to go on from it, times as words, and what was missed."""
        times = {name: " ".join(f"{time:.2f}" for time in sorted(getattr(self, name))) for name in TIMES}
        return asdict(self) | times | {"misses": self.misses()}

    @classmethod
    def of(cls, record: dict[str, Any]) -> FaultRow:
        """The row of a record."""
        times = {name: [float(word) for word in record[name].split()] for name in TIMES}
        return cls(**{name: value for name, value in record.items() if name != "misses"} | times)

    def plus(self, other: FaultRow) -> FaultRow:
        """The tries of both, of one fault."""
        own = asdict(self)
        summed = {name: own[name] + value for name, value in asdict(other).items() if name not in FIXED}
        return replace(self, **summed)


def read_rows(file: Path) -> list[FaultRow]:
    """Of a part's result; none where it is not there."""
    if not file.exists():
        return []
    return [FaultRow.of(record) for record in json.loads(file.read_text(encoding="utf-8"))["faults"]]


def joined(earlier: list[FaultRow], later: list[FaultRow]) -> list[FaultRow]:
    """Both, fault by fault."""
    rows = {row.fault: row for row in earlier}
    for row in later:
        rows[row.fault] = rows[row.fault].plus(row) if row.fault in rows else row
    return list(rows.values())


def table(rows: list[FaultRow]) -> str:
    """As text; times are the largest."""
    lines = ["".join(_cell(name, width) for name, width in HEADINGS)]
    for row in rows:
        cells = zip(_cells(row), HEADINGS, strict=True)
        lines.append("".join(_cell(cell, width) for cell, (_, width) in cells))
        lines += [f"    {note}" for note in row.notes]
    return "\n".join(lines)


def _cells(row: FaultRow) -> list[str]:
    return [
        row.fault,
        str(row.tries),
        str(row.mid_answer),
        _largest(row.noticed_s),
        _largest(row.recovered_s),
        str(row.lost),
        str(row.doubled),
        str(row.repeated_tokens),
    ]


def _cell(text: str, width: int) -> str:
    return text.ljust(width) if width == HEADINGS[0][1] else text.rjust(width)


def _largest(times: list[float]) -> str:
    return f"{max(times):.2f}" if times else "-"
