"""How far a run on stored groups alone raises the held-out reward of the quickstart task.

For each random seed, in processes of their own:

    answers    swift-rlx store generate: candidates for the training prompts, scored by `brief_fact`
    training   swift rlhf examples/quickstart/offline.yaml on that store; no engine can be imported, no reward is given
    reward     the quickstart's own measurement on the held-out prompts, before and after

A seed succeeds by the rule of the quickstart: a rise of at least 0.2 and of at least three standard errors, over the
prompts and paired. What is finished is kept in `--work` and not done again, so that the table can be filled in pieces;
the JSON file has the seeds that were asked for. The exit code is 1 where one of them does not succeed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
QUICKSTART = REPOSITORY / "examples" / "quickstart"
SUPPORT = REPOSITORY / "tests" / "support"
sys.path[:0] = [str(SUPPORT), str(QUICKSTART)]

from reward_curve import spread  # noqa: E402
from runs import free_port  # noqa: E402

RESULT = Path(__file__).resolve().parent / "results" / "offline_reward.json"
MODEL = REPOSITORY / "output" / "quickstart" / "SmolLM2-135M-Instruct"
WORK = REPOSITORY / "output" / "offline_reward"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
COMMAND = "import sys; from swift_rlx.cli.main import main; sys.exit(main())"
"""`swift-rlx` of this repository."""
ANSWERS = {"n": 4, "max-tokens": 32, "rewards": "brief_fact"}
"""Of `store generate`, as examples/quickstart/offline.yaml says."""


def environment(**further: str) -> dict[str, str]:
    """Variables of a command: files instead of hubs, and threads that sleep while they wait."""
    fixed = {
        "USE_HF": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    return {**os.environ, **fixed, "MASTER_PORT": free_port(), **further}


def generate(options: argparse.Namespace, seed: int, folder: Path) -> Path:
    """The store of the seed's answers, which is made unless it is there."""
    store = folder / "answers.store"
    if store.exists():
        return store
    prompts = folder / "prompts.jsonl"
    lines = (QUICKSTART / "prompts_train.jsonl").read_text(encoding="utf-8").splitlines()
    prompts.write_text("\n".join(lines[: options.prompts]) + "\n", encoding="utf-8")
    unfinished = folder / "unfinished.store"
    words = [sys.executable, "-c", COMMAND, "store", "generate", str(unfinished), str(prompts)]
    words += [
        "--model",
        str(options.model),
        "--model-type",
        "llama",
        "--template",
        "chatml",
        "--dtype",
        "float32",
    ]
    words += [
        "--system",
        SYSTEM,
        "--seed",
        str(seed),
        "--external-plugins",
        str(QUICKSTART / "brief_fact.py"),
    ]
    for name, value in ANSWERS.items():
        words += [f"--{name}", str(value)]
    subprocess.run(words, env=environment(), check=True)
    unfinished.rename(store)
    return store


def train(options: argparse.Namespace, seed: int, store: Path, folder: Path) -> dict[str, Any]:
    """The record of the seed's training, which is done unless it is there."""
    path = folder / "training.json"
    if path.exists():
        return dict(json.loads(path.read_text(encoding="utf-8")))
    import yaml

    config = yaml.safe_load((QUICKSTART / "offline.yaml").read_text(encoding="utf-8"))
    output = folder / "output"
    shutil.rmtree(output, ignore_errors=True)
    changes = {
        "model": str(options.model),
        "dataset": str(store),
        "seed": seed,
        "data_seed": seed,
        "add_version": False,
        "output_dir": str(output),
        **json.loads(options.changes),
    }
    file = folder / "offline.yaml"
    file.write_text(yaml.safe_dump({name: one for name, one in config.items() if name != "ENV"} | changes))
    paths = [str(SUPPORT / "no_engine"), *filter(None, [os.environ.get("PYTHONPATH")])]
    begin_s = time.monotonic()
    words = [str(Path(sys.executable).parent / "swift"), "rlhf", str(file)]
    subprocess.run(words, env=environment(PYTHONPATH=os.pathsep.join(paths)), cwd=folder, check=True)
    lines = (output / "logging.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [found for line in lines if "loss" in (found := json.loads(line))]
    checkpoint = max(output.glob("checkpoint-*"), key=lambda one: int(one.name.split("-")[1]))
    record = {
        "command_s": time.monotonic() - begin_s,
        "steps": len(steps),
        "objective": config.get("offline_objective", "auto"),
        "checkpoint": checkpoint.name,
        "last_log": steps[-1],
    }
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record


class Evaluator:
    """The quickstart's own measurement: rewards [P, S] of the held-out prompts."""

    def __init__(self, options: argparse.Namespace) -> None:
        from measure import Sampling, load_reward, read_prompts

        self.options = options
        self.sampling = Sampling(1.0, ANSWERS["max-tokens"], SYSTEM)  # type: ignore[arg-type]
        self.prompts = read_prompts(QUICKSTART / "prompts_heldout.jsonl", SYSTEM)
        self.reward = load_reward("brief_fact", QUICKSTART / "brief_fact.py")

    def rewards(self, path: Path, adapter: Path | None) -> list[list[float]]:
        """Read from `path`, or measured and written there."""
        if not path.exists():
            from measure import Sampler, measure

            with contextlib.redirect_stdout(io.StringIO()):
                rows = measure(Sampler(self.options.model, adapter), self.prompts, self.sampling, self.reward)
            path.write_text(json.dumps(rows), encoding="utf-8")
        found: list[list[float]] = json.loads(path.read_text(encoding="utf-8"))
        return found


def run_seed(options: argparse.Namespace, evaluator: Evaluator, seed: int) -> dict[str, Any]:
    """Everything of a seed."""
    from verdict import compare

    folder = options.work.resolve() / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    store = generate(options, seed, folder)
    record = train(options, seed, store, folder)
    before = evaluator.rewards(options.work.resolve() / "before.json", None)
    after = evaluator.rewards(folder / "after.json", folder / "output" / record["checkpoint"])
    verdict = compare(before, after)
    print(
        f"seed {seed}: {verdict.before.mean:.3f} -> {verdict.after.mean:.3f}, rise {verdict.rise.mean:.3f},"
        f" standard error {verdict.rise.standard_error:.3f}, {record['steps']} steps in {record['command_s']:.0f} s",
        flush=True,
    )
    return {**asdict(verdict), "is_success": verdict.is_success, "training": record}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="How far a run on stored groups alone raises the held-out reward of the quickstart."
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument(
        "--prompts", type=int, default=256, help="of the training prompts, so many have answers"
    )
    parser.add_argument("--changes", default="{}", help="other options of the training, as a JSON object")
    parser.add_argument("--model", type=Path, default=MODEL, help="a model folder; made if it is not there")
    parser.add_argument("--work", type=Path, default=WORK, help="where what is finished is kept")
    parser.add_argument("--output", type=Path, default=RESULT, help="where the JSON file goes")
    options = parser.parse_args()
    options.model = options.model.resolve()
    if importlib.util.find_spec("vllm") is not None:
        parser.error(
            "vLLM is installed here; measure in an environment without an engine, such as .venv-test"
        )
    from prepare_model import prepare

    prepare(options.model)
    evaluator = Evaluator(options)
    runs = {f"seed-{seed}": run_seed(options, evaluator, seed) for seed in options.seeds}
    rises = [one["rise"]["mean"] for one in runs.values()]
    result = {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "prompts": options.prompts,
        "changes": json.loads(options.changes),
        "rise": spread(rises),
        "runs": runs,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if all(one["is_success"] for one in runs.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
