"""What a journal keeps of a run: that a prompt was admitted, its group scored or dropped, a batch picked up.

Entries are written in the order in which things happened, so whatever part of their beginning survives a crash is a
state that the run was in. The trajectories of `Scored` go into the columns of `swift_rlx.store`, everything else into
the note of their unit, as JSON:

    [["admitted", order, epoch, index], ["scored", {fate: tokens}], ["dropped", order, reason, tokens, {fate: tokens}],
     ["picked up", step, unfinished, waited, [order, ...]], ...]

where each "scored" takes the next group of the unit, and {fate: tokens} is what was made for the group since its
admission and is in none of its answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from swift_rlx.errors import StoreError
from swift_rlx.types import DropReason, Fate, TrajectoryGroup


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
    lost: Mapping[Fate, int] = field(default_factory=dict)
    """Tokens that were made for it since its admission and are in no answer of it; no later entry has fewer."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A group ended without training; its answers of the last round had `tokens`. `lost`: as for `Scored`."""

    order: int
    reason: DropReason
    tokens: int
    lost: Mapping[Fate, int] = field(default_factory=dict)


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
_AS_JSON = json.JSONEncoder(separators=(",", ":"))


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
    return groups, _AS_JSON.encode(notes)


def decode(groups: Sequence[TrajectoryGroup], note: str) -> list[Entry]:
    """The entries of a unit. Raises `StoreError` for a note that no journal wrote."""
    remaining = iter(groups)
    try:
        return [_entry(one, remaining) for one in json.loads(note)]
    except (ValueError, TypeError, KeyError, StopIteration) as error:
        raise StoreError(
            f"a unit of the journal has a note that cannot be read: {note[:80]!r} ({error!r})"
        ) from error


def by_name(tokens: Mapping[Fate, int]) -> dict[str, int]:
    """Counts of tokens by fate, as JSON has them."""
    return {fate.value: count for fate, count in tokens.items()}


def by_fate(tokens: Mapping[str, int]) -> dict[Fate, int]:
    """The inverse of `by_name`. Raises `ValueError` for a fate that there is not."""
    return {Fate(fate): int(count) for fate, count in tokens.items()}


def _note(entry: Entry) -> list[object]:
    match entry:
        case Admitted():
            return ["admitted", entry.order, entry.epoch, entry.index]
        case Scored():
            return ["scored", by_name(entry.lost)]
        case Dropped():
            return ["dropped", entry.order, entry.reason.value, entry.tokens, by_name(entry.lost)]
        case PickedUp():
            return ["picked up", entry.step, entry.unfinished, entry.waited, list(entry.orders)]


def _entry(note: Sequence[object], groups: Iterator[TrajectoryGroup]) -> Entry:
    match note:
        case ["admitted", int(order), int(epoch), int(index)]:
            return Admitted(order, epoch, index)
        case ["scored", dict(lost)]:
            return Scored(next(groups), by_fate(lost))
        case ["dropped", int(order), str(reason), int(tokens), dict(lost)]:
            return Dropped(order, DropReason(reason), tokens, by_fate(lost))
        case ["picked up", int(step), int(unfinished), bool(waited), list(orders)]:
            return PickedUp(step, tuple(orders), unfinished, waited)
    raise ValueError(f"unknown entry {note!r}")
