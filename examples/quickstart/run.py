"""Train a small model with RLOO through the real `swift rlhf`, and show that it learned.

    python examples/quickstart/run.py [folder of an example]

1. make the model ready, once; 2. mean reward on the held-out prompts; 3. `swift rlhf <folder>/rloo.yaml`;
4. mean reward again, with the adapter; then the difference, a plot and a verdict. Exit code 1 unless the
held-out reward rose by at least 0.2 and by three standard errors.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prepare_model import PreparationError, prepare

QUICKSTART = Path(__file__).resolve().parent
ROOT = QUICKSTART.parents[1]
MAX_THREADS = 8  # a model this small gains nothing from more

# Before torch is imported, here and in the training process: model and data are files, no hub is asked. Threads
# that wait should sleep: spinning, they slow a machine that has other work by a factor of four.
os.environ.update(USE_HF="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", str(min(MAX_THREADS, len(os.sched_getaffinity(0)))))


class ExampleError(Exception):
    """The example cannot go on; the text is the whole message for the user."""


@dataclass(frozen=True)
class Example:
    """A folder with `rloo.yaml` and `prompts_heldout.jsonl`."""

    folder: Path
    config: dict[str, Any]

    @property
    def config_file(self) -> Path:
        return self.folder / "rloo.yaml"

    @property
    def reward_name(self) -> str:
        return str(self.config["reward_funcs"])

    @property
    def plugin(self) -> Path | None:
        """The file that registers the reward, if it is no installed one."""
        return self.path("external_plugins") if "external_plugins" in self.config else None

    def path(self, key: str) -> Path:
        """A path of the YAML file, which is relative to the top of the clone."""
        return ROOT / self.config[key]


def read_example(folder: Path) -> Example:
    import yaml

    for name in ("rloo.yaml", "prompts_heldout.jsonl"):
        if not (folder / name).is_file():
            raise ExampleError(f"{folder} is no example folder: it has no {name}; try examples/quickstart")
    return Example(folder, yaml.safe_load((folder / "rloo.yaml").read_text(encoding="utf-8")))


def swift_command() -> str:
    """The `swift` of the environment that runs this file."""
    command = Path(sys.executable).parent / "swift"
    if not command.is_file():
        raise ExampleError(
            f"there is no `swift` command beside {sys.executable}; start this with `make quickstart`, or "
            f"install the package first: {sys.executable} -m pip install {ROOT}"
        )
    return str(command)


def train(command: str, example: Example) -> Path:
    """Run `swift rlhf` on the user's terminal, progress bar included; return the folder of the run."""
    output = example.path("output_dir")
    before = set(output.glob("v*"))
    arguments = [command, "rlhf", os.path.relpath(example.config_file, ROOT)]
    print("$", "swift", *arguments[1:], flush=True)
    status = subprocess.run(arguments, cwd=ROOT, check=False).returncode
    if status:
        raise ExampleError(f"`swift rlhf` ended with exit code {status}; the reason is in its output above")
    new = sorted(set(output.glob("v*")) - before, key=lambda folder: folder.stat().st_mtime)
    if not new or not list(new[-1].glob("checkpoint-*")):
        raise ExampleError(f"`swift rlhf` ended well but left no checkpoint in {output}")
    return new[-1]


def last_checkpoint(run: Path) -> Path:
    return max(run.glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))


def report(example: Example, run: Path, verdict: Any, seconds: float) -> None:
    from plot import draw, read_curve

    picture = draw(run / "reward.png", example.reward_name, read_curve(run / "logging.jsonl"), verdict)
    (run / "result.json").write_text(json.dumps(asdict(verdict), indent=2) + "\n", encoding="utf-8")
    print(f"\nreward {example.reward_name} on {verdict.num_prompts} held-out prompts")
    for name in ("before", "after", "rise"):
        estimate = getattr(verdict, name)
        print(f"  {name:7}  {estimate.mean:.3f}, standard error {estimate.standard_error:.3f}")
    print(f"plot       {picture}")
    print(f"run        {run}")
    print(f"took       {seconds:.0f} s")


def run_example(example: Example) -> bool:
    """All five steps; True when the reward rose enough."""
    began = time.monotonic()
    command = swift_command()
    from measure import Sampler, Sampling, load_reward, measure, read_prompts
    from verdict import MIN_RISE, MIN_STANDARD_ERRORS, compare

    model = example.path("model")
    print(f"[1/4] model {model}", flush=True)
    prepare(model)
    config = example.config
    sampling = Sampling(config["temperature"], config["max_completion_length"], config.get("system"))
    prompts = read_prompts(example.folder / "prompts_heldout.jsonl", sampling.system)
    reward = load_reward(example.reward_name, example.plugin)
    print(f"[2/4] reward before training, {len(prompts)} held-out prompts", flush=True)
    before = measure(Sampler(model), prompts, sampling, reward)
    print("[3/4] training", flush=True)
    run = train(command, example)
    print(f"[4/4] reward after training, {last_checkpoint(run)}", flush=True)
    after = measure(Sampler(model, last_checkpoint(run)), prompts, sampling, reward)
    verdict = compare(before, after)
    report(example, run, verdict, time.monotonic() - began)
    if not verdict.is_success:
        print(
            f"error: the held-out reward rose by {verdict.rise.mean:.3f}; a success is at least {MIN_RISE} and "
            f"{MIN_STANDARD_ERRORS:.0f} standard errors of {verdict.rise.standard_error:.3f}",
            file=sys.stderr,
        )
    return verdict.is_success


def main(arguments: list[str]) -> int:
    try:
        folder = Path(arguments[0]).resolve() if arguments else QUICKSTART
        return 0 if run_example(read_example(folder)) else 1
    except (ExampleError, PreparationError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(
            f"error: the Python package {error.name!r} is not installed in {sys.prefix}; start this with "
            "`make quickstart`",
            file=sys.stderr,
        )
        return 1
    except OSError as error:
        print(f"error: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nerror: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
