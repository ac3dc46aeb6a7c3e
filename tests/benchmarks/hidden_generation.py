"""How much of the generation is hidden behind the training, where generation takes 1.6x as long.

Run it as a script. It prints a line for each contestant, writes a JSON file and exits with 1 if the goal is missed:
the trainer at least 96 % busy, and at least 2.5x the steps per hour of the synchronous run, at the default bound.

The trainer is the real one: `swift rlhf --rlhf_type rloo` on a tiny model, with its encoding, scoring, export of
weights and logging. Forward, backward and optimizer are padded by a sleep to `--train-s` seconds, and the workers'
answers take scripted times, both as on accelerators for which the processor waits. So the machine's speed does
not matter, unless it is too slow for the rest. The same answers take the same times for every contestant:

    synchronous       --async_rollout false: generate, then train
    one step ahead    stock's scheme: a thread generates the next batch while this one trains, a whole batch at a time
    staleness N       --max_staleness N: worker processes, our scheduler

Busy is forward, backward and optimizer over wall time after two steps, and up to four steps before the end, when
nothing is left to be generated ahead (`busy_to_end` has these too). Latencies are constant, or long-tailed:
log-normal with sigma 1, scaled so that the slowest answer of a batch takes 1.6x of the training on average, too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).resolve().parents[1] / "support"
RESULT = Path(__file__).resolve().parent / "results" / "hidden_generation.json"
MIN_BUSY = 0.96
MIN_SPEED_UP = 2.5
GENERATE_TO_TRAIN = 1.6
BUSY = 0.7  # work between the steps that uses its core less than this had to wait for others
BOUNDS = (1, 2, 4, 8)
SYNCHRONOUS, ONE_AHEAD = "synchronous", "one step ahead"
CONTESTANTS = (SYNCHRONOUS, ONE_AHEAD, *(f"staleness {bound}" for bound in BOUNDS))
SIGMAS = {"constant": 0.0, "long-tailed": 1.0}
JUDGED = "staleness 2"
"""The default bound."""


def run_contestant(name: str, latencies: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run in a process of its own."""
    words = [sys.executable, str(SUPPORT / "hidden_generation_run.py"), name, str(SIGMAS[latencies])]
    words += [str(options.train_s), str(GENERATE_TO_TRAIN * options.train_s), str(options.steps)]
    paths = [str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        done = subprocess.run(
            [*words, str(output)], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(
                f"the run '{name}' ended with status {done.returncode}:\n{done.stderr[-4000:]}"
            )
        result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return result


def show(latencies: str, name: str, row: dict[str, Any]) -> None:
    """Print a line of the table."""
    print(
        f"{latencies:<13}{name:<16}{row['steps_per_h']:>9.0f}{row['speed_up']:>9.2f}x{row['busy']:>8.1%}"
        f"{row['wait']:>8.1%}{row['publish']:>9.1%}{row['other']:>8.1%}{row['staleness_mean']:>11.2f}"
        f"{row['staleness_max']:>5}{row['in_mask']:>9.1%}",
        flush=True,
    )


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Rows by latencies and contestant."""
    print(
        f"{'latencies':<13}{'contestant':<16}{'steps/h':>9}{'speed-up':>10}{'busy':>8}{'waits':>8}{'publish':>9}"
        f"{'other':>8}{'staleness':>11}{'max':>5}{'in mask':>9}"
    )
    table: dict[str, dict[str, Any]] = {}
    for latencies in options.latencies:
        rows = table[latencies] = {}
        for name in (SYNCHRONOUS, *(one for one in options.contestants if one != SYNCHRONOUS)):
            row = rows[name] = run_contestant(name, latencies, options)
            row["speed_up"] = row["steps_per_h"] / rows[SYNCHRONOUS]["steps_per_h"]
            show(latencies, name, row)
    return table


def missed(table: dict[str, dict[str, Any]]) -> list[str]:
    """What the judged contestant did not reach."""
    found = []
    for latencies, rows in table.items():
        row = rows.get(JUDGED)
        if row is not None and row["busy"] < MIN_BUSY:
            found.append(f"{latencies}, {JUDGED}: {row['busy']:.1%} busy, the goal is {MIN_BUSY:.0%}")
        if row is not None and row["speed_up"] < MIN_SPEED_UP:
            found.append(f"{latencies}, {JUDGED}: {row['speed_up']:.2f}x, the goal is {MIN_SPEED_UP:g}x")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="How much of the generation is hidden behind the training.")
    parser.add_argument("--train-s", type=float, default=4.0, help="seconds of a training step")
    parser.add_argument(
        "--steps", type=int, default=24, help="of each run, four more follow that are not measured"
    )
    parser.add_argument("--latencies", nargs="+", choices=SIGMAS, default=list(SIGMAS))
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--output", type=Path, default=RESULT, help="where the JSON file goes")
    options = parser.parse_args()
    table = measure(options)
    result = {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "load": round(os.getloadavg()[2], 1),
        },
        "train_s": options.train_s,
        "generate_to_train": GENERATE_TO_TRAIN,
        "steps": options.steps,
        "goals": {"busy": MIN_BUSY, "speed_up": MIN_SPEED_UP, "judged": JUDGED},
        "runs": table,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for text in (misses := missed(table)):
        print(f"missed: {text}")
    if any(row["other_cpu_s"] < BUSY * row["other_s"] for rows in table.values() for row in rows.values()):
        print(
            "the machine was busy with other work: what the trainer does between its steps took longer, measure again"
        )
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
