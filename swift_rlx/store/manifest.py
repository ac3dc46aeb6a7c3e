"""Which files belong to a store: numbered generations, each written once.

    manifest/00000017.json         what the 17th change took away and added
    manifest/00000064.full.json    all of generation 64, so that nobody reads the changes before it

A writer that wants to change the store creates the file of the next number. If another one was faster, it reads that
one's change, sees whether its own still fits, and tries the number after it. So changes have one order without a lock,
on a disk, on NFS and on an object store, and what a reader has read never changes under it.
"""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from swift_rlx.errors import StoreError
from swift_rlx.store.place import Place
from swift_rlx.store.schema import FORMAT

FOLDER = "manifest"
FULL = ".full.json"
FULL_EVERY = 64
ROWS, TEXTS, OVERLAY = "rows", "texts", "overlay"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a shard. `kind`: `rows`, `texts`, or `overlay`: columns that take the place of those in `rows`."""

    kind: str
    file: str
    num_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A sealed shard: rows of the prompts of one bucket. Its parts have the same rows in the same order."""

    name: str
    bucket: int
    num_rows: int
    num_tokens: int
    parts: tuple[Part, ...]

    def part(self, kind: str) -> Part:
        """Its file of that kind."""
        return next(part for part in self.parts if part.kind == kind)

    @property
    def overlays(self) -> tuple[Part, ...]:
        """Its overlays; a later one covers an earlier one."""
        return tuple(part for part in self.parts if part.kind == OVERLAY)

    @property
    def num_bytes(self) -> int:
        """Of all its files."""
        return sum(part.num_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Change:
    """`removed` must be there as they are; `sealed` says which round of a writer the change is."""

    removed: tuple[ShardEntry, ...] = ()
    added: tuple[ShardEntry, ...] = ()
    sealed: tuple[str, int] | None = None
    swept: tuple[str, ...] = ()


class ChangeRefused(StoreError):
    """Another process changed the same part of the store first; nothing was published."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The store at one generation.

    `sealed`: number of the last sealed round of each writer. `retired`: files that left the store, with the time
    (seconds since 1970) at which they did; they are deleted later.
    """

    generation: int = 0
    shards: Mapping[str, ShardEntry] = field(default_factory=dict)
    sealed: Mapping[str, int] = field(default_factory=dict)
    retired: Mapping[str, float] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return sum(shard.num_rows for shard in self.shards.values())

    def files(self) -> set[str]:
        """Names of the files that its shards are made of."""
        return {part.file for shard in self.shards.values() for part in shard.parts}

    def after(self, change: Change, time_s: float) -> Manifest:
        """The next generation. Raises `ChangeRefused` where the change does not fit."""
        shards, sealed = dict(self.shards), dict(self.sealed)
        for shard in change.removed:
            if shards.pop(shard.name, None) != shard:
                raise ChangeRefused(
                    f"shard '{shard.name}' was changed by another process meanwhile; start the command again"
                )
        shards |= {shard.name: shard for shard in change.added}
        if change.sealed is not None:
            writer, number = change.sealed
            expected = sealed.get(writer, -1) + 1
            if number != expected:
                raise ChangeRefused(
                    f"round {number} of the writer '{writer}' is refused, its next one is {expected}; another process"
                    " writes under the same name"
                )
            sealed[writer] = number
        kept = {part.file for shard in change.added for part in shard.parts}
        gone = {part.file for shard in change.removed for part in shard.parts} - kept
        retired = {file: at for file, at in self.retired.items() if file not in change.swept}
        return Manifest(self.generation + 1, shards, sealed, retired | dict.fromkeys(gone, time_s))


class ManifestLog:
    """Reads and extends the generations of a place. One thread at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: Manifest | None = None

    def latest(self) -> Manifest:
        """The newest generation. Raises `StoreError` where one is altered or missing."""
        newest = 0
        if (manifest := self._known) is None:
            names = self._place.names(FOLDER)
            newest = max((_number(name) for name in names), default=0)
            manifest = self._newest_full(names)
        while (found := self._place.read(_delta_name(manifest.generation + 1))) is not None:
            body = _checked(found, self._place.url, manifest.generation + 1)
            manifest = manifest.after(_change(body), body["time_s"])
        if manifest.generation < newest:
            raise StoreError(
                f"generation {manifest.generation + 1} of the manifest of '{self._place.url}' is missing, though later"
                " ones are there; put the file back from a copy"
            )
        self._known = manifest
        return manifest

    def publish(self, change: Change) -> Manifest:
        """Make the next generation. Raises `ChangeRefused` where the change does not fit what others made."""
        while True:
            manifest, time_s = self.latest(), time.time()
            changed = manifest.after(change, time_s)
            body = {
                "generation": changed.generation,
                "time_s": time_s,
                "removed": [asdict(shard) for shard in change.removed],
                "added": [asdict(shard) for shard in change.added],
                "sealed": change.sealed,
                "swept": change.swept,
            }
            if self._place.create(_delta_name(changed.generation), _sealed_json(body)):
                self._known = changed
                if changed.generation % FULL_EVERY == 0:
                    self._write_full(changed)
                return changed

    def _write_full(self, manifest: Manifest) -> None:
        body = {
            "generation": manifest.generation,
            "shards": [asdict(shard) for shard in manifest.shards.values()],
            "sealed": manifest.sealed,
            "retired": manifest.retired,
        }
        self._place.create(_full_name(manifest.generation), _sealed_json(body))

    def _newest_full(self, names: Iterable[str]) -> Manifest:
        """The newest that is whole: each of them only saves the reading of what came before."""
        for number in sorted((_number(name) for name in names if name.endswith(FULL)), reverse=True):
            data = self._place.read(_full_name(number))
            try:
                body = _checked(data or b"", self._place.url, number)
            except StoreError as error:
                logger.warning("%s; the changes before it are read instead", error)
                continue
            shards = {shard.name: shard for shard in _entries(body["shards"])}
            return Manifest(body["generation"], shards, body["sealed"], body["retired"])
        return Manifest()


def _number(name: str) -> int:
    """Of a generation's file; 0 for a file that is none."""
    first = name.split(".")[0]
    return int(first) if first.isdigit() and name.endswith(".json") else 0


def _delta_name(generation: int) -> str:
    return f"{FOLDER}/{generation:08d}.json"


def _full_name(generation: int) -> str:
    return f"{FOLDER}/{generation:08d}{FULL}"


def _sealed_json(body: Mapping[str, Any]) -> bytes:
    """JSON with the format, and the checksum of the rest."""
    text = json.dumps({"format": FORMAT, **body}, sort_keys=True, separators=(",", ":"))
    return json.dumps({"crc32": zlib.crc32(text.encode()), "body": text}).encode()


def _checked(data: bytes, url: str, generation: int) -> dict[str, Any]:
    try:
        outer = json.loads(data)
        text = outer["body"]
        if zlib.crc32(text.encode()) != outer["crc32"]:
            raise ValueError("its checksum is another")
        body: dict[str, Any] = json.loads(text)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"generation {generation} of the manifest of '{url}' is torn or altered ({error}); put the file back from a"
            " copy: without it the order of changes is unknown"
        ) from error
    if body["format"] != FORMAT:
        raise StoreError(
            f"'{url}' has format {body['format']} of the manifest, and this version reads {FORMAT}; read it with the"
            " version that wrote it"
        )
    return body


def _change(body: Mapping[str, Any]) -> Change:
    sealed = body["sealed"]
    return Change(
        _entries(body["removed"]),
        _entries(body["added"]),
        None if sealed is None else (sealed[0], sealed[1]),
        tuple(body["swept"]),
    )


def _entries(found: Iterable[Mapping[str, Any]]) -> tuple[ShardEntry, ...]:
    return tuple(_entry(one) for one in found)


def _entry(found: Mapping[str, Any]) -> ShardEntry:
    parts = tuple(Part(**part) for part in found["parts"])
    return ShardEntry(found["name"], found["bucket"], found["num_rows"], found["num_tokens"], parts)
