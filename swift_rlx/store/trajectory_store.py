"""The store of scored trajectories: what is made once and trained on many times.

<store>/store.json              how it is laid out; never changes
<store>/manifest/00000001.json  which shards there are, by generation
<store>/shards/<name>.rows.arrow, .texts.arrow, .overlay-<n>.arrow
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from swift_rlx.errors import StoreError
from swift_rlx.store.manifest import Manifest, ManifestLog
from swift_rlx.store.place import EXCLUSIVE, PARTIAL, Place, place_at
from swift_rlx.store.round_writer import Buckets, RoundWriter
from swift_rlx.store.schema import FORMAT
from swift_rlx.store.snapshot import Snapshot

SETTINGS = "store.json"
DEFAULT_BUCKETS = 4
OPEN_ATTEMPTS = 5


class TrajectoryStore:
    """A store on a local disk, on NFS, or on what fsspec reaches; make it with `create` or `open`.

    `place`, `buckets`: where it is, and how rows are spread over shards. Threads need an object each.
    """

    def __init__(self, place: Place, buckets: Buckets) -> None:
        self.place = place
        self.buckets = buckets
        self.log = ManifestLog(place)

    @classmethod
    def create(
        cls,
        url: str | Path,
        *,
        buckets: int | None = None,
        is_half: bool | None = None,
        cache: Path | None = None,
    ) -> TrajectoryStore:
        """Make a store where none is, or open the one that is there.

        `buckets`: parts by prompt, 4 by default; `is_half`: log-probs in half precision where that is safe, which is
        the default. `cache`: folder for the files of a remote store. Raises `StoreError` for a store that was made with
        other settings, for a folder that has other files, and for a file system that cannot create a file exclusively.
        """
        if buckets is not None and buckets < 1:
            raise StoreError(f"a store of {buckets} buckets is refused; use at least 1")
        wanted = Buckets(buckets or DEFAULT_BUCKETS, is_half is not False)
        place = place_at(url, cache)
        if place.read(SETTINGS) is None:
            _refuse_other_files(place)
            place.check_exclusive()
            logprobs = "half" if wanted.is_half else "single"
            settings = {"format": FORMAT, "buckets": wanted.count, "logprobs": logprobs}
            place.create(SETTINGS, json.dumps(settings).encode())
        store = cls.open(url, cache=cache)
        asked = Buckets(
            store.buckets.count if buckets is None else buckets,
            store.buckets.is_half if is_half is None else is_half,
        )
        if store.buckets != asked:
            raise StoreError(f"the store '{url}' has {store.buckets}, not {asked}, which cannot be changed; make a new"
                             " one")  # fmt: skip
        return store

    @staticmethod
    def check_new(url: str | Path) -> None:
        """Raise `StoreError` where `create` would, for files that are no store: before what is to fill it is loaded."""
        place = place_at(url)
        if place.read(SETTINGS) is None:
            _refuse_other_files(place)

    @classmethod
    def open(cls, url: str | Path, *, cache: Path | None = None) -> TrajectoryStore:
        """The store that is there. Raises `StoreError` where none is, or one of another format."""
        place = place_at(url, cache)
        data = place.read(SETTINGS)
        if data is None:
            raise StoreError(f"'{url}' is no store of trajectories: it has no {SETTINGS}; make one with"
                             f" `swift-rlx store import`, or give its directory")  # fmt: skip
        try:
            settings = json.loads(data)
            found, buckets, logprobs = settings["format"], settings["buckets"], settings["logprobs"]
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"'{url}/{SETTINGS}' is torn or altered: {error!r}") from error
        if found != FORMAT:
            raise StoreError(
                f"'{url}' has format {found} of stores, and this version reads {FORMAT}; read it with the version that"
                " wrote it"
            )
        return cls(place, Buckets(buckets, logprobs == "half"))

    def manifest(self) -> Manifest:
        """The newest generation."""
        return self.log.latest()

    def writer(self, name: str) -> RoundWriter:
        """A writer under that name, which goes on behind its last sealed round."""
        return RoundWriter(self.place, self.log, self.buckets, name)

    def snapshot(self, before: Snapshot | None = None) -> Snapshot:
        """All that is sealed now; `before`: an earlier one, whose open files serve again."""
        for _ in range(OPEN_ATTEMPTS - 1):
            manifest = self.manifest()
            try:
                return Snapshot(self.place, manifest, before)
            except StoreError:
                if self.manifest().generation == manifest.generation:
                    raise  # else a file may have been swept away between the two readings
        return Snapshot(self.place, self.manifest(), before)

    def sealed(self) -> Mapping[str, int]:
        """The number of the last sealed round of each writer: what a checkpoint keeps to see the same rows again."""
        return dict(self.manifest().sealed)


def _refuse_other_files(place: Place) -> None:
    """What a process left that was killed while it made the store is none of them."""
    others = [name for name in place.entries() if not (name.endswith(PARTIAL) or name.startswith(EXCLUSIVE))]
    if others and place.read(SETTINGS) is None:  # another process may have made the store meanwhile
        raise StoreError(
            f"'{place.url}' is refused as a store: it has no {SETTINGS}, but other files, such as '{others[0]}'; give"
            " the directory of a store, or one that is new or empty"
        )
