"""What the trajectory store costs: size, write rate, random rows, memory of an epoch, and writers that are killed.

Run it as a script. It prints a line for each measurement, writes a JSON file and exits with 1 if a limit is missed.

    size      trajectories of about 250 tokens and prompts of 60, vocabulary 151k, about 1,100 characters of text: bytes
              on disk, beside parquet (zstd) of the same columns; rows a second of writing
    rows      64 random rows of the training columns of that store, warm; beside Arrow's `take` on the loaded table and
              on parquet row groups
    epoch     all groups of many short rows (16 tokens, groups of 4) once, in random batches: anonymous and shared
              memory of the process, from /proc/self/smaps_rollup, beside that of the loaded Arrow table
    parquet   the same rows as parquet, loaded: its size, and the memory that it takes
    kills     a writer that is killed at random moments, again and again: every sealed trajectory readable, none double
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from killed_writer import kill_writers
from written_groups import GROUP, ROUND_GROUPS, Words, short_group, written_group

from swift_rlx.store import BatchRules, GroupBatches, TrajectoryStore
from swift_rlx.store.compaction import compact
from swift_rlx.store.manifest import ROWS, TEXTS, Change
from swift_rlx.store.round_writer import OpenShard
from swift_rlx.store.row_columns import RoundPlace, row_schema, to_row_batches

RESULT = Path(__file__).resolve().parent / "results" / "trajectory_store.json"
LIMITS = {"megabytes": 250.0, "rows_64_ms": 1.0, "epoch_memory_share": 0.15}


def size(folder: Path, rows: int) -> dict[str, float]:
    """A store of that many rows in `folder`; bytes, and rows a second, of writing and of all."""
    words, random_ = Words(0), np.random.default_rng(1)
    store, writing = TrajectoryStore.create(folder), 0.0
    writer = store.writer("benchmark")
    for begin in range(0, rows // GROUP, ROUND_GROUPS):
        end = min(begin + ROUND_GROUPS, rows // GROUP)
        groups = [written_group(number, words, random_) for number in range(begin, end)]
        start = time.perf_counter()
        writer.add(groups)
        writer.seal()
        writing += time.perf_counter() - start
    start = time.perf_counter()
    compact(store.place, store.log)
    compacting = time.perf_counter() - start
    snapshot = store.snapshot()
    sizes = [shard.entry for shard in snapshot.shards]
    return {
        "rows": snapshot.num_rows,
        "tokens_per_row": sum(entry.num_tokens for entry in sizes) / snapshot.num_rows,
        "text_characters_per_row": statistics.mean(
            len(text) for one in snapshot.groups(range(100)) for text in one.texts
        ),
        "megabytes": sum(entry.num_bytes for entry in sizes) / 1e6,
        "megabytes_rows": sum(entry.part(ROWS).num_bytes for entry in sizes) / 1e6,
        "megabytes_text": sum(entry.part(TEXTS).num_bytes for entry in sizes) / 1e6,
        "rows_written_per_s": snapshot.num_rows / writing,
        "compact_s": compacting,
        **as_parquet(store, folder.with_suffix(".parquet")),
    }


def as_parquet(store: TrajectoryStore, file: Path) -> dict[str, float]:
    """The same rows and texts as one parquet file."""
    schema, start = None, time.perf_counter()
    writer = None
    for shard in store.snapshot().shards:
        for number, chunk in enumerate(shard.chunks):
            texts = shard.texts(number)
            names = [*chunk.batch.schema.names, *(f"text_{name}" for name in texts.schema.names)]
            table = pa.Table.from_arrays([*chunk.batch.columns, *texts.columns], names)
            if writer is None:
                schema = table.schema
                writer = pq.ParquetWriter(file, schema, compression="zstd")
            writer.write_table(table)
    assert writer is not None
    writer.close()
    return {"megabytes_parquet": file.stat().st_size / 1e6, "parquet_s": time.perf_counter() - start}


def rows(folder: Path, rounds: int = 200) -> dict[str, float]:
    """Milliseconds for 64 random rows, medians."""
    snapshot = TrajectoryStore.open(folder).snapshot()
    columns = [
        "prompt_ids",
        "token_ids",
        "logprobs",
        "policy_steps",
        "policy_step_lengths",
        "sampled",
        "reward",
    ]
    table = pa.Table.from_batches(
        [chunk.batch.select(columns) for chunk in snapshot.chunks],
    )
    parquet = pq.ParquetFile(folder.with_suffix(".parquet"))
    random_ = np.random.default_rng(2)
    for number in range(0, snapshot.num_rows, 1000):  # warm
        snapshot.rows(range(number, min(number + 1000, snapshot.num_rows)))
    wanted = [random_.integers(0, snapshot.num_rows, 64) for _ in range(rounds)]

    def touched(found: list[Any]) -> int:
        return sum(int(row.token_ids[-1]) + len(row.logprobs) for row in found)

    return {
        "rows_64_ms": timed(lambda numbers: touched(snapshot.rows(numbers)), wanted),
        "arrow_take_64_ms": timed(lambda numbers: table.take(pa.array(numbers)), wanted),
        "parquet_64_ms": timed(lambda numbers: from_parquet(parquet, columns, numbers), wanted[:3]),
    }


def from_parquet(parquet: pq.ParquetFile, columns: list[str], numbers: np.ndarray) -> None:
    """Random rows are whole row groups, read and decompressed."""
    per_group = parquet.metadata.row_group(0).num_rows
    for number in np.unique(numbers // per_group).clip(max=parquet.num_row_groups - 1):
        parquet.read_row_group(int(number), columns)


def timed(call: Any, inputs: list[Any]) -> float:
    found = []
    for one in inputs:
        start = time.perf_counter()
        call(one)
        found.append(1000 * (time.perf_counter() - start))
    return statistics.median(found)


def short_store(folder: Path, rows: int) -> None:
    """Short rows, made in columns: one batch again and again under other ids, as rounds of 2**18 rows."""
    store = TrajectoryStore.create(folder, buckets=1)
    random_ = np.random.default_rng(3)
    per_batch = 8192
    groups = [short_group(number, random_) for number in range(per_batch // GROUP)]
    batch, texts = to_row_batches(groups, RoundPlace("short", 0, 0), True)
    at, ids = batch.schema.get_field_index("row_id"), 0
    for number, begin in enumerate(range(0, rows, 2**18)):
        shard = OpenShard(store.place, f"000-{number:05d}", 0, row_schema(True))
        for _ in range(begin, min(begin + 2**18, rows), per_batch):
            new = pa.array(np.arange(ids, ids + per_batch, dtype=np.uint64))
            ids += per_batch
            shard.add(
                batch.set_column(at, batch.schema.field(at), new),
                texts.set_column(0, texts.schema.field(0), new),
            )
        store.log.publish(Change(added=(shard.finish(),), sealed=("short", number)))


def own_memory() -> float:
    """Anonymous and shared memory of this process in MB, without the pages of files."""
    facts = dict(
        line.split(":")
        for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    )
    return sum(int(facts[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem")) / 1024


def epoch(folder: Path) -> dict[str, float]:
    """Every group once; the largest memory that was seen."""
    start = time.perf_counter()
    snapshot = TrajectoryStore.open(folder).snapshot()
    batches = GroupBatches(snapshot, BatchRules(2048, max_reuse=1))
    opened, peak, tokens, seen = time.perf_counter() - start, 0.0, 0, 0
    for step in range(snapshot.num_groups):
        numbers = batches.take(step)
        if not numbers:
            break
        found = snapshot.rows(
            np.concatenate([np.arange(*snapshot.group_begins[[one, one + 1]]) for one in numbers])
        )
        tokens += sum(int(row.token_ids[0] >= 0) + len(row.logprobs) for row in found)
        seen += len(found)
        if step % 16 == 0:
            peak = max(peak, own_memory())
    assert seen == snapshot.num_rows
    return {
        "rows": seen,
        "open_s": opened,
        "epoch_s": time.perf_counter() - start,
        "peak_mb": max(peak, own_memory()),
    }


def loaded(folder: Path) -> dict[str, float]:
    """The training rows as an Arrow table in memory."""
    tables = [
        pa.ipc.open_stream(path.read_bytes()).read_all()
        for path in sorted(folder.glob("shards/*.rows.arrow"))
    ]
    table = pa.concat_tables(tables)
    return {"rows": table.num_rows, "table_mb": table.nbytes / 2**20, "peak_mb": own_memory()}


def parquet_epoch(folder: Path) -> dict[str, float]:
    """The same rows as parquet, loaded: parquet has no rows that can be mapped."""
    file = folder.with_suffix(".parquet")
    writer = None
    for path in sorted(folder.glob("shards/*.rows.arrow")):
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_stream(source).read_all()
            writer = writer or pq.ParquetWriter(file, table.schema, compression="zstd")
            writer.write_table(table)
    assert writer is not None
    writer.close()
    del table
    pa.default_memory_pool().release_unused()
    found = pq.read_table(file)
    return {"rows": found.num_rows, "megabytes": file.stat().st_size / 1e6, "peak_mb": own_memory()}


PARTS = {"epoch": epoch, "loaded": loaded, "parquet": parquet_epoch}
ON_SHORT_ROWS = {"epoch": ("epoch", "loaded"), "parquet": ("parquet",)}
KINDS = ("kills", "size", *ON_SHORT_ROWS)


def in_process(part: str, folder: Path) -> dict[str, float]:
    """A part in a process of its own, whose memory is its alone."""
    command = [sys.executable, __file__, "--part", part, "--folder", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def main() -> int:
    parser = argparse.ArgumentParser(description="What the trajectory store costs.")
    add = parser.add_argument
    add("--rows", type=int, default=100_000, help="of the measurement of size")
    add("--short-rows", type=int, default=10_000_000, help="of the measurement of memory")
    add("--kills", type=int, default=200, help="of a writer")
    add("--work", type=Path, help="folder for the stores; 8 GB for the default sizes")
    add("--output", type=Path, default=RESULT, help="where the JSON file goes")
    add(
        "--only",
        nargs="+",
        choices=KINDS,
        help="measure these anew and keep the others of the JSON file",
    )
    add("--part", choices=PARTS, help="run this part alone and print it")
    add("--folder", type=Path, help="of --part")
    options = parser.parse_args()
    if options.part:
        print(json.dumps(PARTS[options.part](options.folder)))
        return 0
    is_kept = options.only and options.output.exists()
    result = json.loads(options.output.read_text(encoding="utf-8")) if is_kept else {}
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        result |= measured(Path(work), options)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return report(result)


def measured(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The measurements that are asked for, by default all."""
    only = options.only or KINDS
    result: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_at_start": round(os.getloadavg()[0], 1),
        },
        "limits": LIMITS,
    }
    if "kills" in only:
        result["kills"] = kill_writers(work / "kills", options.kills)
    if "size" in only:
        result["size"] = size(work / "size", options.rows)
        result["rows"] = rows(work / "size")
    if parts := [part for kind in only for part in ON_SHORT_ROWS.get(kind, ())]:
        short_store(work / "short", options.short_rows)
        result |= {part: in_process(part, work / "short") for part in parts}
    if "epoch" in result:
        result["epoch"]["memory_share"] = result["epoch"]["peak_mb"] / result["loaded"]["peak_mb"]
    return result


def report(result: dict[str, Any]) -> int:
    """A line for each measurement; the exit code."""
    if missing := {"kills", "size", "rows", *PARTS} - result.keys():
        print(f"not measured yet: {', '.join(sorted(missing))}")
        return 1
    size_, rows_, epoch_, kills_ = (result[name] for name in ("size", "rows", "epoch", "kills"))
    print(
        f"size    {size_['megabytes']:.1f} MB for {size_['rows']:,} rows of {size_['tokens_per_row']:.0f} tokens"
        f" (parquet {size_['megabytes_parquet']:.1f} MB), {size_['rows_written_per_s']:,.0f} rows/s written"
    )
    print(
        f"rows    {rows_['rows_64_ms']:.3f} ms for 64 random rows (Arrow take {rows_['arrow_take_64_ms']:.1f},"
        f" parquet {rows_['parquet_64_ms']:.0f})"
    )
    print(
        f"epoch   {epoch_['peak_mb']:.0f} MB of {result['loaded']['peak_mb']:.0f} MB loaded"
        f" ({epoch_['memory_share']:.1%}; parquet {result['parquet']['peak_mb']:.0f} MB), {epoch_['rows']:,} rows in"
        f" {epoch_['epoch_s']:.0f} s"
    )
    print(
        f"kills   {kills_['kills']}: {kills_['readable_rows']:,} of {kills_['rows_of_sealed_rounds']:,} sealed rows are"
        f" readable, {kills_['double_rows']} double"
    )
    return 0 if is_within_limits(result) else 1


def is_within_limits(result: dict[str, Any]) -> bool:
    """Whether the measurements keep to the limits beside them."""
    limits, kills_ = result["limits"], result["kills"]
    return (
        result["size"]["megabytes"] < limits["megabytes"]
        and result["rows"]["rows_64_ms"] < limits["rows_64_ms"]
        and result["epoch"]["memory_share"] < limits["epoch_memory_share"]
        and kills_["readable_rows"] == kills_["rows_of_sealed_rounds"]
        and not kills_["double_rows"]
        and not kills_["damaged_shards"]
    )


if __name__ == "__main__":
    sys.exit(main())
