"""What the hook costs every Python program: `python -c pass` with and without it, in turn.

Run it as a script. It prints a table, writes a JSON file and exits with 1 if the median of the paired
differences of an install, with or without .pyc files, is 1 ms or more. On a machine that does other work,
start it by `chrt -f 10` (as root): then its wall times hold next to no waiting for others.

Each round starts one Python of every kind, in an order that rotates; a difference is taken within a round, so
that drift of the machine's speed cancels. The kinds are virtual environments that hold nothing but these:

    bare            nothing
    installed       the package, swift_rlx.pth and swift_rlx.start, as a wheel installs them
    start           the package, and a line that does what Python 3.15 does for swift_rlx.start
    ..., no .pyc    the same without compiled files (installers that do not compile, read-only file systems)
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
RESULT = Path(__file__).resolve().parent / "results" / "start_cost.json"
LIMIT_MS = 1.0
REAL_TIME = (os.SCHED_FIFO, os.SCHED_RR)
BUSY = 1.5  # a bare start that takes this many times its minimum had to wait for others
BARE = "bare"
JUDGED = ("installed", "installed, no .pyc")
START_LINE = "import swift_rlx._boot; swift_rlx._boot.install()\n"


def make_environments(folder: Path) -> dict[str, Path]:
    """The Python of each kind of environment."""
    pythons = {}
    for number, kind in enumerate([BARE, *JUDGED, "start", "start, no .pyc"]):
        environment = folder / str(number)
        venv.create(environment, with_pip=False, symlinks=True)
        pythons[kind] = environment / "bin" / "python"
        if kind == BARE:
            continue
        (packages,) = (environment / "lib").glob("python*/site-packages")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / "swift_rlx", packages / "swift_rlx", ignore=ignored)
        if "no .pyc" not in kind:
            compileall.compile_dir(packages / "swift_rlx", quiet=2)
        if kind in JUDGED:
            shutil.copy(REPOSITORY / "swift_rlx.pth", packages)
            shutil.copy(REPOSITORY / "swift_rlx.start", packages)
        else:
            (packages / "swift_rlx.pth").write_text(START_LINE, encoding="ascii")
    return pythons


class Start(NamedTuple):
    """One start of Python, in milliseconds."""

    wall: float
    cpu: float


def start(python: Path) -> Start:
    """Time one `python -c pass`; CPU time is what the operating system charges for the whole process."""
    arguments = [str(python), "-c", "pass"]
    begin = time.perf_counter()
    child = os.posix_spawn(python, arguments, {"PYTHONDONTWRITEBYTECODE": "1"})
    _, status, usage = os.wait4(child, 0)
    wall = time.perf_counter() - begin
    if status != 0:
        raise RuntimeError(f"`{' '.join(arguments)}` ended with status {status}")
    return Start(wall * 1000, (usage.ru_utime + usage.ru_stime) * 1000)


def measure(pythons: dict[str, Path], pairs: int) -> dict[str, list[Start]]:
    """Starts by kind; entry i of every kind belongs to round i."""
    kinds = list(pythons)
    for kind in kinds:
        start(pythons[kind])  # the files are in the page cache from here on
    starts: dict[str, list[Start]] = {kind: [] for kind in kinds}
    for number in range(pairs):
        shift = number % len(kinds)
        for kind in kinds[shift:] + kinds[:shift]:
            starts[kind].append(start(pythons[kind]))
    return starts


def summarize(starts: dict[str, list[Start]]) -> dict[str, dict[str, float]]:
    """Milliseconds by kind: absolute for the bare Python, else what is added to it."""
    bare = starts[BARE]
    fastest, usual = min(one.wall for one in bare), statistics.median(one.wall for one in bare)
    rows = {BARE: {"min_ms": fastest, "median_ms": usual}}
    for kind, values in starts.items():
        if kind == BARE:
            continue
        wall = [value.wall - base.wall for value, base in zip(values, bare, strict=True)]
        cpu = [value.cpu - base.cpu for value, base in zip(values, bare, strict=True)]
        low, median, high = statistics.quantiles(wall, n=4)
        rows[kind] = {
            "added_min_to_min_ms": min(value.wall for value in values) - fastest,
            "added_median_ms": median,
            "added_quartile_1_ms": low,
            "added_quartile_3_ms": high,
            "added_cpu_median_ms": statistics.median(cpu),
        }
    return {kind: {name: round(value, 3) for name, value in row.items()} for kind, row in rows.items()}


def show(rows: dict[str, dict[str, float]]) -> None:
    """Print the table."""
    bare = rows[BARE]
    print(f"bare `python -c pass`: min {bare['min_ms']:.2f} ms, median {bare['median_ms']:.2f} ms")
    print(f"{'added, in ms':<20}{'min to min':>12}{'median of pairs':>18}{'quartiles':>20}{'CPU time':>12}")
    for kind, row in rows.items():
        if kind != BARE:
            quartiles = f"{row['added_quartile_1_ms']:+.2f} .. {row['added_quartile_3_ms']:+.2f}"
            wall = f"{row['added_min_to_min_ms']:>+12.2f}{row['added_median_ms']:>+18.2f}{quartiles:>20}"
            print(f"{kind:<20}{wall}{row['added_cpu_median_ms']:>+12.2f}")
    if bare["median_ms"] > BUSY * bare["min_ms"]:
        print("the machine was busy with other work: wall times are inflated, measure again when it is idle")


def main() -> int:
    parser = argparse.ArgumentParser(description="What the hook costs every Python program at its start.")
    parser.add_argument("--pairs", type=int, default=400, help="rounds, each with one start of every kind")
    parser.add_argument("--output", type=Path, default=RESULT, help="where the JSON file goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = summarize(measure(make_environments(Path(folder)), options.pairs))
    show(rows)
    result = {
        "command": "python -c pass",
        "pairs": options.pairs,
        "limit_ms": LIMIT_MS,
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "scheduling": "real-time" if os.sched_getscheduler(0) in REAL_TIME else "normal",
        },
        "kinds": rows,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    too_slow = [kind for kind in JUDGED if rows[kind]["added_median_ms"] >= LIMIT_MS]
    if too_slow:
        print(f"over {LIMIT_MS} ms: {', '.join(too_slow)}")
    return 1 if too_slow else 0


if __name__ == "__main__":
    sys.exit(main())
