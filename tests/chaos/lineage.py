"""What the surviving lineage of a run trained, from the lines that the training step wrote.

A start that is resumed from the checkpoint of step c continues what was trained before c; what an earlier start
trained from c on is no part of the model that is left.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Trained:
    """What a run's lineage holds against what it had to. Samples are completions of a prompt."""

    lost: int
    doubled: int
    steps: int
    tokens: int
    """In the loss."""
    repeated_tokens: int
    """Generated a second time: as the scheduler counts them, and those of answers that were not finished when a start
    was killed, as of its last micro-batch."""
    replayed_otherwise: int
    """Batches that an earlier start had trained on, and a later one trained on as something else."""
    oldest: int
    """Optimizer steps: the largest staleness of a token in the loss."""
    counts: Counter[int]
    """Samples by prompt."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines, of a file that may not be there yet, and whose last line may be on its way."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def surviving(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of the lineage that is left, in the order of training."""
    lineage: list[dict[str, Any]] = []
    for _, start in groupby(lines, key=lambda line: line["life"]):
        begun = list(start)
        lineage = [line for line in lineage if line["step"] < begun[0]["step"]] + begun
    return lineage


def samples_of(line: dict[str, Any]) -> Counter[int]:
    """Samples of a micro-batch by prompt; copies that fill a group up train nothing and are none."""
    counts: Counter[int] = Counter()
    seen = set()
    for row in line["rows"]:
        if row["tokens"] or row["ids"] not in seen:
            counts[row["prompt"]] += 1
        seen.add(row["ids"])
    return counts


def replayed_otherwise(lines: list[dict[str, Any]]) -> int:
    """Steps that two starts trained on different batches: what was picked up before a crash has to come back as it was.

    A start from the very beginning owes the earlier one nothing: no checkpoint had been made.
    """
    batches: dict[int, str] = {}
    changed = 0
    for _, start in groupby(lines, key=lambda line: line["life"]):
        begun = {line["step"]: line["batch"] for line in start}
        if min(begun) == 0:
            batches = {}
        changed += sum(batches.get(step, batch) != batch for step, batch in begun.items())
        batches |= begun
    return changed


def judge(lines: list[dict[str, Any]], expected: Counter[int]) -> Trained:
    """Compare the lineage with the samples by prompt that an undisturbed run trains."""
    lineage = surviving(lines)
    counts: Counter[int] = Counter()
    for line in lineage:
        counts += samples_of(line)
    ends = [list(start)[-1] for _, start in groupby(lines, key=lambda line: line["life"])]
    return Trained(
        lost=(expected - counts).total(),
        doubled=(counts - expected).total(),
        steps=len({line["step"] for line in lineage}),
        tokens=sum(row["tokens"] for line in lineage for row in line["rows"]),
        repeated_tokens=ends[-1]["repeated"] + sum(end["unfinished"] for end in ends[:-1]) if ends else 0,
        replayed_otherwise=replayed_otherwise(lines),
        oldest=max((line["oldest"] for line in lineage), default=0),
        counts=counts,
    )
