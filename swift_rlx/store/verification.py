"""Finds shards that are torn, altered or missing, and takes them out of the store so that the rest goes on."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swift_rlx.errors import StoreError
from swift_rlx.store.manifest import Change, Manifest, ManifestLog, ShardEntry
from swift_rlx.store.place import Place
from swift_rlx.store.sealed_shard import SealedShard


@dataclass(frozen=True, slots=True)
class Damage:
    """A shard that cannot be trusted, and why."""

    shard: ShardEntry
    cause: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found. `twice`: rows whose id another row has; `lost_files`: that no manifest names."""

    generation: int
    shards: int
    rows: int
    num_bytes: int
    damaged: tuple[Damage, ...]
    twice: int
    lost_files: tuple[str, ...]

    @property
    def is_sound(self) -> bool:
        return not self.damaged and not self.twice


def verify(place: Place, manifest: Manifest) -> Verified:
    """Read every byte of every shard where it is, and compare."""
    damaged, row_ids = [], [np.zeros(0, np.uint64)]
    for entry in manifest.shards.values():
        try:
            row_ids.append(_row_ids(place, entry))
        except StoreError as error:
            damaged.append(Damage(entry, str(error)))
    ids = np.concatenate(row_ids)
    twice = len(ids) - len(np.unique(ids))
    named = manifest.files() | set(manifest.retired)
    lost = [
        found.name for found in place.files() if found.name.startswith("shards/") and found.name not in named
    ]
    size = sum(entry.num_bytes for entry in manifest.shards.values())
    return Verified(
        manifest.generation, len(manifest.shards), manifest.num_rows, size, tuple(damaged), twice, tuple(lost)
    )


def take_out(log: ManifestLog, damaged: tuple[Damage, ...]) -> None:
    """Publish a generation without these shards; their files stay until they are swept."""
    log.publish(Change(removed=tuple(damage.shard for damage in damaged)))


def _row_ids(place: Place, entry: ShardEntry) -> npt.NDArray[np.uint64]:
    """The ids of its rows. Raises `StoreError` where a file is not what was written."""
    for part in entry.parts:
        place.local(part.file, part.num_bytes)
        found = 0
        for block in place.blocks(part.file):
            found = zlib.crc32(block, found)
        if found != part.crc32:
            raise StoreError(f"'{part.file}' has checksum {found} instead of {part.crc32}: it was altered")
    shard = SealedShard(place, entry)
    for number, chunk in enumerate(shard.chunks):
        ids = np.asarray(shard.texts(number).column("row_id"))
        if not np.array_equal(ids, chunk.row_ids):
            raise StoreError(f"the texts of shard '{entry.name}' are of other rows than its rows")
    return np.concatenate([np.zeros(0, np.uint64), *(chunk.row_ids for chunk in shard.chunks)])
