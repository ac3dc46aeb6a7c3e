"""Trajectories on disk: one format (Arrow IPC), one writer, one reader.

    writer = ShardWriter(path)
    writer.add(groups, note="whatever belongs to them")
    writer.flush()              survives the death of this process
    writer.sync()               survives the loss of power
    writer.close()
    shard = read_shard(path)    every whole unit, however the file ends

The columns are in `schema.py` and docs/en/trajectory_files.md.
"""

from swift_rlx.store.schema import FORMAT
from swift_rlx.store.shard_reader import Shard, Unit, read_metadata, read_shard
from swift_rlx.store.shard_writer import ShardWriter

__all__ = ["FORMAT", "Shard", "ShardWriter", "Unit", "read_metadata", "read_shard"]
