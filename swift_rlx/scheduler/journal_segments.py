"""The files of a journal: segments, each of which says what it goes on from.

    <directory>/20260214-093012-5f0c9a1e.arrow    name: when it was begun, and a random number

A segment begins with a snapshot, which names it, and with each start of the run; it has a file once it has an entry.
Its metadata holds its position: the name of the segment before it, and how many entries that one had. So the entries
after a snapshot are those of the segment that it names, then of the one whose position is the end of that, and so on.
A segment of which a part was lost has another end, and nothing follows it; a start that read the shortened one goes on
from there.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from swift_rlx.errors import StoreError
from swift_rlx.scheduler.journal_entries import Entry, decode
from swift_rlx.store import ShardWriter, read_metadata, read_shard

SUFFIX = ".arrow"
NAME, ENTRIES, INCARNATION = "follows", "after_entries", "incarnation"


@dataclass(frozen=True, slots=True)
class Position:
    """Behind the first `entries` entries of a segment."""

    name: str = ""
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment that is going to be written. `incarnation`: of the start that writes it."""

    directory: Path
    name: str
    follows: Position
    incarnation: int

    def open(self) -> ShardWriter:
        """Make the file, and its directory. Raises `StoreError` where that cannot be done."""
        metadata = {
            NAME: self.follows.name,
            ENTRIES: str(self.follows.entries),
            INCARNATION: str(self.incarnation),
        }
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the directory '{self.directory}' cannot be made: {error.strerror or error}"
            ) from error
        return ShardWriter(_path(self.directory, self.name), metadata)


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """What a journal holds behind a snapshot.

    `incarnation`: of the newest start that wrote some of it, -1 for none. `cut_bytes`: torn ends that were left out.
    """

    entries: tuple[Entry, ...]
    end: Position
    incarnation: int
    cut_bytes: int


def new_name() -> str:
    """A name that no other segment has, later ones behind earlier ones."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


def read_past(directory: Path, name: str) -> Past:
    """The entries from the segment `name` on. Raises `StoreError` for files that cannot be read at all."""
    by_position = {position: path.stem for position, path in _positions(directory)}
    entries: list[Entry] = []
    incarnation, cut_bytes = -1, 0
    current: str | None = name
    while current is not None:
        end = Position(current)
        if _path(directory, current).exists():  # a segment without entries has no file
            shard = read_shard(_path(directory, current))
            found = [entry for unit in shard.units for entry in decode(unit.groups, unit.note)]
            entries += found
            end = Position(current, len(found))
            cut_bytes += shard.cut_bytes
            if found:
                incarnation = max(incarnation, int(shard.metadata[INCARNATION]))
        current = by_position.get(end)
    return Past(tuple(entries), end, incarnation, cut_bytes)


def remove_unneeded(directory: Path, needed: Collection[str]) -> None:
    """Delete the segments that neither are in `needed` nor follow one that is."""
    follows = {path.stem: position.name for position, path in _positions(directory)}
    kept = set(needed)
    while more := {name for name, before in follows.items() if before in kept} - kept:
        kept |= more
    for name in set(follows) - kept:
        try:
            _path(directory, name).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(
                f"'{_path(directory, name)}' cannot be deleted: {error.strerror or error}"
            ) from error


def _positions(directory: Path) -> Iterator[tuple[Position, Path]]:
    """Each file with what it goes on from; one with a torn beginning holds nothing, and goes on from nothing."""
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        metadata = read_metadata(path)
        if metadata is None:
            yield Position(), path
        elif NAME in metadata:  # else it is not of a journal
            yield Position(metadata[NAME], int(metadata[ENTRIES])), path


def _path(directory: Path, name: str) -> Path:
    return directory / f"{name}{SUFFIX}"
