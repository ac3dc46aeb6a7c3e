"""What a journal keeps of a run: that a prompt was admitted, its group scored or dropped, a batch picked up.

Entries are written in the order in which things happened, so whatever part of their beginning survives a crash is a
state that the run was in. The trajectories of `Scored` go into the columns of `swift_rlx.store`, everything else into
the note of their unit, as JSON:

    [["admitted", order, epoch, index], ["scored"], ["dropped", order, reason, tokens],
     ["picked up", step, unfinished, waited, [order, ...]], ...]

where each "scored" takes the next group of the unit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from swift_rlx.errors import StoreError
from swift_rlx.types import DropReason, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Admitted:
    """A prompt was admitted as number `order`."""

    order: int
    epoch: int
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """A group became ready; a later round of the same group takes the place of an earlier one."""

    group: TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Dropped:
    """A group ended without training; `tokens` of its last round had been generated."""

    order: int
    reason: DropReason
    tokens: int


@dataclass(frozen=True, slots=True)
class PickedUp:
    """The trainer took a batch at optimizer step `step`: the groups with these numbers, in this order; none where it
    took a stored batch instead of waiting.

    `unfinished`: how many others were not ready then; `waited`: whether the trainer had to wait for it.
    """

    step: int
    orders: tuple[int, ...]
    unfinished: int
    waited: bool


Entry = Admitted | Scored | Dropped | PickedUp


class EntrySink(Protocol):
    """What the scheduler tells of a run."""

    def add(self, entry: Entry) -> None:
        """Something happened. Raises `StoreError` where entries cannot be kept any more."""

    def cut(self) -> str:
        """A snapshot is taken; the name under which one finds what is added from now on."""


def encode(entries: Iterable[Entry]) -> tuple[list[TrajectoryGroup], str]:
    """The groups and the note of a unit."""
    groups, notes = [], []
    for entry in entries:
        if isinstance(entry, Scored):
            groups.append(entry.group)
        notes.append(_note(entry))
    return groups, json.dumps(notes, separators=(",", ":"))


def decode(groups: Sequence[TrajectoryGroup], note: str) -> list[Entry]:
    """The entries of a unit. Raises `StoreError` for a note that no journal wrote."""
    remaining = iter(groups)
    try:
        return [_entry(one, remaining) for one in json.loads(note)]
    except (ValueError, TypeError, KeyError, StopIteration) as error:
        raise StoreError(
            f"a unit of the journal has a note that cannot be read: {note[:80]!r} ({error!r})"
        ) from error


def _note(entry: Entry) -> list[object]:
    match entry:
        case Admitted():
            return ["admitted", entry.order, entry.epoch, entry.index]
        case Scored():
            return ["scored"]
        case Dropped():
            return ["dropped", entry.order, entry.reason.value, entry.tokens]
        case PickedUp():
            return ["picked up", entry.step, entry.unfinished, entry.waited, list(entry.orders)]


def _entry(note: Sequence[object], groups: Iterator[TrajectoryGroup]) -> Entry:
    match note:
        case ["admitted", int(order), int(epoch), int(index)]:
            return Admitted(order, epoch, index)
        case ["scored"]:
            return Scored(next(groups))
        case ["dropped", int(order), str(reason), int(tokens)]:
            return Dropped(order, DropReason(reason), tokens)
        case ["picked up", int(step), int(unfinished), bool(waited), list(orders)]:
            return PickedUp(step, tuple(orders), unfinished, waited)
    raise ValueError(f"unknown entry {note!r}")
