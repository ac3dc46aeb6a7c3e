"""What the tries of each fault came to, and whether that is good enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lineage import Trained

NOTICE_S = 2.0
"""Of a kill."""
RECOVERY_S = 60.0
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
        if trained.replayed_otherwise:
            self.wrong.append(f"{trained.replayed_otherwise} batches came back from the journal as others")

    def misses(self) -> list[str]:
        """What is not as it must be."""
        found = [f"{self.fault}: {sentence}" for sentence in self.wrong]
        if not self.tries:
            found.append(f"{self.fault}: not tried")
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
        """For the JSON file."""
        return {
            "fault": self.fault,
            "runs": self.runs,
            "tries": self.tries,
            "mid_answer": self.mid_answer,
            "noticed": _times(self.noticed_s, self.notice_limit_s),
            "recovered": _times(self.recovered_s, RECOVERY_S),
            "samples_lost": self.lost,
            "samples_doubled": self.doubled,
            "tokens_generated_twice": self.repeated_tokens,
            "notes": self.notes,
            "misses": self.misses(),
        }


def table(records: list[dict[str, Any]]) -> str:
    """As text, from what `FaultRow.record` gives; times are the largest."""
    lines = ["".join(_cell(name, width) for name, width in HEADINGS)]
    for record in records:
        cells = zip(_cells(record), HEADINGS, strict=True)
        lines.append("".join(_cell(cell, width) for cell, (_, width) in cells))
        lines += [f"    {note}" for note in record["notes"]]
    return "\n".join(lines)


def _cells(record: dict[str, Any]) -> list[str]:
    counts = ("samples_lost", "samples_doubled", "tokens_generated_twice")
    return [
        record["fault"],
        str(record["tries"]),
        str(record["mid_answer"]),
        _largest(record["noticed"]),
        _largest(record["recovered"]),
        *(str(record[name]) for name in counts),
    ]


def _cell(text: str, width: int) -> str:
    return text.ljust(width) if width == HEADINGS[0][1] else text.rjust(width)


def _largest(times: dict[str, Any]) -> str:
    return f"{times['max_s']:.2f}" if times["seen"] else "-"


def _times(times: list[float], limit_s: float | None) -> dict[str, Any]:
    ordered = sorted(times)
    return {
        "seen": len(ordered),
        "median_s": round(ordered[len(ordered) // 2], 3) if ordered else None,
        "max_s": round(ordered[-1], 3) if ordered else None,
        "limit_s": limit_s,
    }
