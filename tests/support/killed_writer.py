"""A writer of a store that is killed at random moments and started again, and what must be true then."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
from written_groups import GROUP, Words, written_group

from swift_rlx.store import StoredGroup, TrajectoryStore
from swift_rlx.store.verification import verify

GROUPS = 16
ROUNDS = 4


def kill_writers(folder: Path, count: int, seed: int = 0) -> dict[str, int]:
    """Kill that many writers, one after the other; what is sealed, and what can be read.

    A writer is forked from this process, which has everything imported, so that it is killed while it writes. It lives
    between no time and about `ROUNDS` rounds, whatever a round takes on this machine.
    """
    lives = random.Random(seed)
    store = TrajectoryStore.create(folder)
    words, numbers = Words(0), np.random.default_rng(4)
    groups = [written_group(number, words, numbers) for number in range(GROUPS)]
    start = time.monotonic()
    writer = store.writer("killed")
    writer.add(groups)
    writer.seal()
    max_life_s = ROUNDS * (time.monotonic() - start)
    for _ in range(count):
        child = os.fork()
        if not child:
            _write(folder, groups)
        time.sleep(lives.uniform(0.0, max_life_s))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    found = verify(store.place, store.manifest())
    snapshot = store.snapshot()
    sealed = snapshot.manifest.sealed.get("killed", -1) + 1
    return {
        "kills": count,
        "sealed_rounds": sealed,
        "rows_of_sealed_rounds": sealed * GROUPS * GROUP,
        "readable_rows": sum(len(one.texts) for one in snapshot.groups(range(snapshot.num_groups))),
        "double_rows": found.twice,
        "damaged_shards": len(found.damaged),
        "files_of_unsealed_rounds": len(found.lost_files),
    }


def _write(folder: Path, groups: list[StoredGroup]) -> None:
    """Until it is killed."""
    try:
        writer = TrajectoryStore.open(folder).writer("killed")
        while True:
            writer.add(groups)
            writer.seal()
    finally:
        os._exit(1)
