"""How much of the scoring is hidden behind the training, and what running a reward costs beside the reward itself.

Run it as a script. It prints a line for each contestant and each way of running, writes a JSON file and exits with 1 if
a goal is missed:

- a reward that takes as long as the training costs less than 5 % of a step in the pipeline;
- where scoring is half of a synchronous step, the step of the pipeline is at least 35 % shorter.

The trainer is the real one, on a tiny model, padded by a sleep to `--train-s` seconds a step; answers take half of it.
The reward sleeps, in a process of its own, one for all rows, so that the machine's speed does not matter, unless it is
too slow for the rest; a step is the median, as other work of the machine may hold up single ones. The overhead is that
of a reward that returns at once, a row of a group of eight, without the training.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).resolve().parents[1] / "support"
RESULT = Path(__file__).resolve().parent / "results" / "reward_runner.json"
MAX_COST, MIN_SHORTER = 0.05, 0.35
GENERATE_TO_TRAIN = 0.5
PIPELINE, SYNCHRONOUS = "staleness 2", "synchronous"
CONTESTANTS = {
    "free": (PIPELINE, 0.0),
    "as long as the training": (PIPELINE, 1.0),
    "half of a synchronous step": (SYNCHRONOUS, 1.0 + GENERATE_TO_TRAIN),
    "the same in the pipeline": (PIPELINE, 1.0 + GENERATE_TO_TRAIN),
}
"""How it trains, and how long its reward takes for a batch, as a multiple of the training."""
GROUP, ROUNDS = 8, 300


def run_contestant(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run in a process of its own."""
    how, score_to_train = CONTESTANTS[name]
    seconds = [options.train_s, GENERATE_TO_TRAIN * options.train_s, score_to_train * options.train_s]
    words = [
        sys.executable,
        str(SUPPORT / "reward_runner_run.py"),
        how,
        *map(str, seconds),
        str(options.steps),
    ]
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
        found = json.loads(output.read_text(encoding="utf-8"))
    return {"step_s": found["median_step_s"], **{key: found[key] for key in ("busy", "wait", "other")}}


def overheads() -> dict[str, float]:
    """Microseconds a row, by where and how the reward is called: the median over many groups."""
    sys.path.insert(0, str(SUPPORT))
    import odd_rewards

    from swift_rlx.cluster.reward_pool import ProcessExecution, RewardPool
    from swift_rlx.rewards import AlarmWatch, checked_reward, describe_reward
    from swift_rlx.rewards.execution import LoopExecution, ThreadExecution
    from swift_rlx.rewards.origin import origin_of_attribute
    from swift_rlx.rewards.runner import RewardRunner

    async def timed(score: Callable[..., Any], texts: list[str]) -> float:
        times = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            await score(texts, {})
            times.append((time.perf_counter() - begin) / len(texts))
        return 1e6 * statistics.median(times[ROUNDS // 10 :])

    async def measure() -> dict[str, float]:
        pool, watch, found = RewardPool(1), AlarmWatch(), {}
        for form in ("each", "all_at_once"):
            for where in ("process", "thread", "loop"):
                target = getattr(odd_rewards, form + ("_async" if where == "loop" else ""))
                reward, origin = describe_reward(form, target), origin_of_attribute(form, target)
                checked: Any = checked_reward(reward)
                execution = {
                    "process": lambda o=origin, f=form: ProcessExecution(f, o, pool, lambda: None),  # type: ignore
                    "thread": lambda c=checked: ThreadExecution(c, watch),  # type: ignore
                    "loop": lambda c=checked: LoopExecution(c, watch),  # type: ignore
                }[where]()
                runner = RewardRunner(reward, execution)
                found[f"{where}, {form}"] = await timed(runner.score, ["1"] * GROUP)
        await pool.close()
        return found

    return asyncio.run(measure())


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The two figures with goals, of the contestants that were run."""
    found, steps = {}, {name: row["step_s"] for name, row in rows.items()}
    if {"free", "as long as the training"} <= steps.keys():
        found["cost"] = steps["as long as the training"] / steps["free"] - 1.0
    if {"half of a synchronous step", "the same in the pipeline"} <= steps.keys():
        found["shorter"] = 1.0 - steps["the same in the pipeline"] / steps["half of a synchronous step"]
    return found


def missed(figures: dict[str, float]) -> list[str]:
    """What was not reached."""
    found = []
    if figures.get("cost", 0.0) >= MAX_COST:
        found.append(
            f"a reward as long as the training costs {figures['cost']:.1%} of a step, not below {MAX_COST:.0%}"
        )
    if figures.get("shorter", 1.0) < MIN_SHORTER:
        found.append(f"the step is {figures['shorter']:.1%} shorter, the goal is {MIN_SHORTER:.0%}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="How much of the scoring is hidden behind the training.")
    parser.add_argument("--train-s", type=float, default=3.0, help="seconds of a training step")
    parser.add_argument(
        "--steps", type=int, default=8, help="of each run, four more follow that are not measured"
    )
    parser.add_argument("--contestants", nargs="*", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument(
        "--output", type=Path, default=RESULT, help="where the JSON file goes; other rows in it stay"
    )
    options = parser.parse_args()
    before = json.loads(options.output.read_text(encoding="utf-8")) if options.output.exists() else {}
    rows: dict[str, dict[str, Any]] = before.get("runs", {})
    print(f"{'reward':<30}{'step s':>8}{'busy':>8}{'waits':>8}{'other':>8}")
    for name in options.contestants:
        row = rows[name] = run_contestant(name, options) | {
            "train_s": options.train_s,
            "steps": options.steps,
        }
        print(
            f"{name:<30}{row['step_s']:>8.2f}{row['busy']:>8.1%}{row['wait']:>8.1%}{row['other']:>8.1%}",
            flush=True,
        )
    row_us = overheads()
    for name, value in row_us.items():
        print(f"overhead a row, {name:<24}{value:>9.1f} us")
    figures = summary(rows)
    result = {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "load": round(os.getloadavg()[2], 1),
        },
        "generate_to_train": GENERATE_TO_TRAIN,
        "goals": {"cost": MAX_COST, "shorter": MIN_SHORTER},
        "runs": rows,
        "overhead_us_a_row": row_us,
        **figures,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, value in figures.items():
        print(f"{name}: {value:.1%}")
    for text in (misses := missed(figures)):
        print(f"missed: {text}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
