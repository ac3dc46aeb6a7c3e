"""Trajectories on disk: one format (Arrow IPC), one writer, one reader.

A file of its own, such as a segment of a journal:

    writer = ShardWriter(path)
    writer.add(groups, note="whatever belongs to them")
    writer.flush()              survives the death of this process
    writer.sync()               survives the loss of power
    writer.close()
    shard = read_shard(path)    every whole unit, however the file ends

A store, of many such files:

    store = TrajectoryStore.create(directory)
    writer = store.writer("run-7")
    writer.add(groups)                                  `StoredGroup`s
    writer.seal()                                       they are in the store
    batches = GroupBatches(store.snapshot(), BatchRules(groups=32))
    for number in batches.take(step): snapshot.group(number)

The columns are in `schema.py`, `row_columns.py` and docs/en/trajectory_files.md; the store is in
docs/en/trajectory_store.md.
"""

from swift_rlx.store.batches import BatchRules, GroupBatches
from swift_rlx.store.chunk import StoredRow
from swift_rlx.store.schema import FORMAT
from swift_rlx.store.selection import GroupFilter
from swift_rlx.store.shard_reader import Shard, Unit, read_metadata, read_shard
from swift_rlx.store.shard_writer import ShardWriter
from swift_rlx.store.snapshot import Snapshot
from swift_rlx.store.stored_group import StoredGroup
from swift_rlx.store.trajectory_store import TrajectoryStore

__all__ = [
    "FORMAT",
    "BatchRules",
    "GroupBatches",
    "GroupFilter",
    "Shard",
    "ShardWriter",
    "Snapshot",
    "StoredGroup",
    "StoredRow",
    "TrajectoryStore",
    "Unit",
    "read_metadata",
    "read_shard",
]
