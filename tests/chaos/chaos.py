"""Break a training run in every way that days of training do, and count what was trained.

    python tests/chaos/chaos.py [workers trainer servers rewards machine vllm] [--tries N] [--seed N] [--table]

Each part runs the real `swift rlhf --rlhf_type rloo` on a random two-layer llama, with real worker processes,
checkpoints every few steps and the journal, and first of all once undisturbed. What was trained is counted from lines
that are written in the training step (`training_witness.py`), on the surviving lineage (`lineage.py`). It prints a
table and writes results/<part>.json; the exit code is 1 where a sample was lost or doubled, a fault was noticed or
recovered from too late, or a process, shared memory or a secret was left behind. `vllm` needs the environment that has
it; the others run in the one that has not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import machine_faults
import server_faults
import trainer_faults
import worker_faults
from fault_table import FaultRow, joined, read_rows, table
from swift_run import SwiftRun, Task
from tiny_llama import save_tiny_llama
from worker_faults import Disturbance

RESULTS = Path(__file__).resolve().parent / "results"
UNDISTURBED_S = 900.0
Rows = dict[str, FaultRow]


@dataclass
class Setting:
    """Of a part: its task, where its runs go, how many tries, and the one source of chance.

    `keep`: called with the rows after each run, so that a part which is broken off has a result, too.
    """

    task: Task
    folder: Path
    tries: int
    chance: random.Random
    keep: Callable[[Rows], None]
    runs: int = 0

    def run(self, task: Task | None = None, **options: object) -> SwiftRun:
        """The next run, not launched yet."""
        self.runs += 1
        return SwiftRun(self.folder / f"run-{self.runs}", task or self.task, **options)  # type: ignore[arg-type]

    def done(self, rows: Rows, text: str) -> None:
        """A run has ended."""
        self.keep(rows)
        print(f"  {time.strftime('%H:%M:%S')} {text}", flush=True)


def workers(setting: Setting, rows: Rows) -> None:
    """Three workers: so many kills, and about one stop for ten of them."""
    faults = [worker_faults.KILL] * 10 + [worker_faults.STOP]
    row = rows[worker_faults.KILL.name] = FaultRow(worker_faults.KILL.name)
    while row.tries < setting.tries:
        tries = min(25, setting.tries - row.tries)
        Disturbance(setting.run(), setting.chance, gap_s=2.0).live(faults, tries, rows)
        setting.done(rows, f"{row.tries} of {setting.tries} kills of workers")


def trainer(setting: Setting, rows: Rows) -> None:
    """Ten kills a run."""
    row = rows[trainer_faults.NAME] = FaultRow(trainer_faults.NAME, notice_limit_s=None)
    while row.tries < setting.tries:
        tries = min(10, setting.tries - row.tries)
        trainer_faults.killed_run(setting.run(), tries, 4.0, setting.chance, row)
        setting.done(rows, f"{row.tries} of {setting.tries} kills of the trainer")


def servers(setting: Setting, rows: Rows) -> None:
    """Each fault so many times, in random order."""
    other = setting.folder / "other"
    save_tiny_llama(other, seed=1)
    faults = list(server_faults.FAULTS) * setting.tries
    setting.chance.shuffle(faults)
    while faults:
        with server_faults.servers_of(setting.task, setting.folder / f"servers-{setting.runs}") as found:
            variables = {server_faults.VARIABLE: server_faults.SECRET}
            run = setting.run(options=server_faults.options(found), variables=variables)
            done = server_faults.Breaking(run, found, other, setting.chance).live(faults[:8], rows)
        del faults[:done]
        setting.done(rows, f"{len(faults)} faults of servers are left")


def rewards(setting: Setting, rows: Rows) -> None:
    """A reward that raises, and one that hangs, on one row."""
    for _ in range(setting.tries):
        for fault in machine_faults.REWARDS:
            machine_faults.reward_run(setting.run, fault, setting.chance, rows)
            setting.done(rows, fault.name)


def machine(setting: Setting, rows: Rows) -> None:
    """The disk is full, for a while or for good; the wall clock jumps."""
    for _ in range(setting.tries):
        for kind in (machine_faults.full_disk_run, machine_faults.moved_clock_run):
            kind(setting.run, setting.chance, rows)
            setting.done(rows, kind.__name__)


def vllm(setting: Setting, rows: Rows) -> None:
    """Kills of the engine's own core process."""
    done = 0
    options = {"rollout_backend": "vllm"}
    while done < setting.tries:
        run = setting.run(options=options)
        tries = min(10, setting.tries - done)
        done += Disturbance(run, setting.chance, gap_s=20.0).live([worker_faults.KILL_ENGINE], tries, rows)
        setting.done(rows, f"{done} of {setting.tries} kills of vLLM")


@dataclass(frozen=True)
class Part:
    """`tries`: by default. `task`: its changes."""

    run: Callable[[Setting, Rows], None]
    tries: int
    task: dict[str, float]


PARTS = {
    "workers": Part(workers, 200, {"epochs": 12, "step_s": 0.2}),
    "trainer": Part(trainer, 50, {"epochs": 8, "workers": 2, "step_s": 0.2}),
    "servers": Part(servers, 4, {"epochs": 20, "step_s": 0.3}),
    "rewards": Part(rewards, 2, {"workers": 1, "step_s": 0.0}),
    "machine": Part(machine, 2, {"workers": 1, "step_s": 0.1}),
    "vllm": Part(vllm, 20, {"epochs": 20, "workers": 2, "step_s": 0.5}),
}


def run_part(name: str, tries: int, seed: int, folder: Path, keep: Callable[[Rows], None]) -> None:
    """All of its faults, after a run without any."""
    part = PARTS[name]
    model = folder / "model"
    save_model(model, name == "vllm")
    task = replace(Task(model), **part.task)
    setting = Setting(task, folder, tries, random.Random(f"{name}/{seed}"), keep)
    undisturbed(setting, {"rollout_backend": "vllm"} if name == "vllm" else {})
    part.run(setting, {})


def save_model(folder: Path, is_for_vllm: bool) -> None:
    """A random llama; vLLM's CPU build wants heads of a certain size."""
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1} if is_for_vllm else {}
    save_tiny_llama(folder, **sizes)


def undisturbed(setting: Setting, options: dict[str, str]) -> None:
    """The multiset that every disturbed run is held against is what this one trains."""
    with setting.run(replace(setting.task, step_s=0.0, epochs=1), options=options) as run:
        run.launch()
        status = run.wait_end(UNDISTURBED_S)
    trained = run.judge()
    if status or trained.lost or trained.doubled or trained.counts != run.task.expected:
        raise SystemExit(f"the undisturbed run is not as it must be: {trained}; {run.tail()}")


def write(file: Path, seeds: list[int], seconds: float, rows: list[FaultRow]) -> None:
    """The result of a part as JSON."""
    file.parent.mkdir(exist_ok=True)
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    faults = [row.record() for row in rows]
    result = {"seeds": seeds, "seconds": round(seconds), "machine": machine, "faults": faults}
    file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def run_and_write(name: str, options: argparse.Namespace) -> list[FaultRow]:
    """A part; with --add its result is that of both."""
    print(f"{name}, random seed {options.seed}:", flush=True)
    file, begin_s = RESULTS / f"{name}.json", time.monotonic()
    earlier = json.loads(file.read_text(encoding="utf-8")) if options.add and file.exists() else {}
    before, result = read_rows(file) if earlier else [], []

    def keep(rows: Rows) -> None:
        result[:] = joined(before, list(rows.values()))
        seconds = earlier.get("seconds", 0) + time.monotonic() - begin_s
        write(file, [*earlier.get("seeds", []), options.seed], seconds, result)

    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        folder = (options.keep or Path(temporary)) / name
        run_part(name, options.tries or PARTS[name].tries, options.seed, folder, keep)
    return result


def judged(rows: list[FaultRow]) -> int:
    """Print the table and what was missed; the exit status."""
    print(table(rows))
    misses = [miss for row in rows for miss in row.misses()]
    print(*misses, sep="\n")
    return 1 if misses else 0


def chosen(names: list[str]) -> list[str]:
    """The parts that are asked for; by default those that this environment can run."""
    has_vllm = importlib.util.find_spec("vllm") is not None
    return names or [name for name in PARTS if (name == "vllm") == has_vllm]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--tries", type=int, help="kills, or tries of each fault of servers, rewards and machine"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--add", action="store_true", help="to the result that is there")
    parser.add_argument("--keep", type=Path, help="a folder for the runs, which stay there")
    parser.add_argument("--table", action="store_true", help="run nothing, show the results that are there")
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the run that is on
    if options.table:
        return judged([row for name in PARTS for row in read_rows(RESULTS / f"{name}.json")])
    return judged([row for name in chosen(options.parts) for row in run_and_write(name, options)])


if __name__ == "__main__":
    sys.exit(main())
