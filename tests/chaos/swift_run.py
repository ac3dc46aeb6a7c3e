"""A run of the real `swift rlhf` on a tiny model that is killed, stopped, resumed and looked at from outside."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).resolve().parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

import runs  # noqa: E402
from leftovers import MARK, Traces  # noqa: E402
from lineage import Trained, judge, read_lines  # noqa: E402

HERE = Path(__file__).resolve().parent
WITNESS = HERE / "training_witness.py"
REWARD = SUPPORT / "vowels_plugin.py"
HOST, TRAINER = "swift_rlx.cluster.host", "rlhf.py"
PROMPTS_A_STEP, GROUP = 2, 4
CHECKPOINT_STEPS = 4
SECRET = "sk-chaos-9f3b77aa10"
"""The key of the servers: it must not be found in any log."""
LOOK_S = 0.1


@dataclass(frozen=True)
class Task:
    """What is trained. `step_s`: how long a step sleeps, see `training_witness`."""

    model: Path
    prompts: int = 32
    epochs: int = 2
    tokens: int = 64
    step_s: float = 0.2
    workers: int = 3

    @property
    def steps(self) -> int:
        """Optimizer steps: whole epochs, so that each prompt has a number of samples that is known."""
        return self.prompts * self.epochs // PROMPTS_A_STEP

    @property
    def expected(self) -> Counter[int]:
        """Samples by prompt."""
        return Counter(dict.fromkeys(range(self.prompts), self.epochs * GROUP))

    def write_rows(self, path: Path) -> None:
        """The data set; the number of a prompt stands in its text."""
        rows = [
            {"messages": [{"role": "user", "content": f"say {n}"}], "row": n} for n in range(self.prompts)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@dataclass
class SwiftRun:
    """One run through all of its starts, in a folder. `options`: of the command; `variables`: of its environment.

    What is left of it ends with its `with` block; whether anything is, has to be looked at before.
    """

    folder: Path
    task: Task
    options: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    life: int = 0
    """How often it was started."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.task.write_rows(self.folder / "rows.jsonl")
        self.mark = secrets.token_hex(8)
        self.traces = Traces(self.mark)
        self.log = self.folder / "output.log"
        self.launches_s: list[float] = []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SwiftRun:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    # --- the command ---------------------------------------------------------------------------------------------

    def launch(self) -> None:
        """Give the command; from the newest whole checkpoint, where there is one."""
        self.life += 1
        self.launches_s.append(time.monotonic())
        checkpoint = self.newest_checkpoint()
        resume = {} if checkpoint is None else {"resume_from_checkpoint": str(checkpoint)}
        words = runs.command(self._arguments() | resume)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                words, env=self._environment(), stdout=log, stderr=log, start_new_session=True
            )

    def _arguments(self) -> dict[str, Any]:
        task = self.task
        given: dict[str, Any] = {
            "rlhf_type": "rloo",
            "async_rollout": True,
            "rollout_backend": "transformers",
            "rollout_workers": task.workers,
            "reward_funcs": ["vowels"],
            "external_plugins": [str(REWARD), str(WITNESS)],
            "num_generations": GROUP,
            "per_device_train_batch_size": GROUP,
            "gradient_accumulation_steps": PROMPTS_A_STEP,
            "max_completion_length": task.tokens,
            "max_steps": task.steps,
            "learning_rate": 1e-5,  # answers stay as long as a random model makes them
            "save_strategy": "steps",
            "save_steps": CHECKPOINT_STEPS,
            "save_total_limit": 3,
        }
        plugins = [*given["external_plugins"], *self.options.get("external_plugins", ())]
        changes = given | self.options | {"external_plugins": plugins}
        return runs.arguments(task.model, self.folder / "rows.jsonl", self.output, **changes)

    def _environment(self) -> dict[str, str]:
        own = {
            MARK: self.mark,
            "CHAOS_FOLDER": str(self.folder),
            "CHAOS_LIFE": str(self.life),
            "CHAOS_STEP_S": str(self.task.step_s),
            "MASTER_PORT": runs.free_port(),
            "OMP_NUM_THREADS": "1",
            "USE_HF": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        return os.environ | own | self.variables

    @property
    def output(self) -> Path:
        """The output directory of the command."""
        return self.folder / "output"

    def newest_checkpoint(self) -> Path | None:
        """The newest that was written to its end: the trainer's own state comes last."""

        def is_whole(path: Path) -> bool:
            try:
                json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return False
            return True

        found = sorted(self.output.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        return next(filter(is_whole, reversed(found)), None)

    # --- what is seen of it --------------------------------------------------------------------------------------

    @property
    def status(self) -> int | None:
        """Exit status of the command; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def trained(self) -> list[dict[str, Any]]:
        """Lines of the training step, of all starts."""
        return read_lines(self.folder / "trained.jsonl")

    def has_trained(self) -> bool:
        """Whether this start has trained."""
        lines = self.trained()
        return bool(lines) and lines[-1]["life"] == self.life

    def events(self, kind: str, since_s: float = 0.0, **facts: Any) -> list[dict[str, Any]]:
        """Events of a kind from that time on, with these facts."""
        return [
            one
            for one in read_lines(self.folder / "events.jsonl")
            if one["event"] == kind and one["at_s"] >= since_s and facts.items() <= one.items()
        ]

    def trainer(self) -> int | None:
        """Process number of the trainer; None before it is there."""
        for pid, words in self.traces.look().items():
            if len(words) > 1 and words[1].endswith(TRAINER):
                return pid
        return None

    def workers(self) -> dict[str, int]:
        """Process numbers of the living worker processes by name."""
        return {
            words[words.index(HOST) + 2]: pid
            for pid, words in self.traces.look().items()
            if HOST in words[:4] and len(words) > words.index(HOST) + 2
        }

    def wait(self, what: Callable[[], Any], limit_s: float) -> bool:
        """Wait until it holds; False where the run ends or the time is over before."""
        deadline = time.monotonic() + limit_s
        while not what():
            if self.status is not None or time.monotonic() > deadline:
                return bool(what())
            time.sleep(LOOK_S)
        return True

    def wait_end(self, limit_s: float) -> int:
        """The exit status. Raises `AssertionError` where it does not end, and ends it."""
        assert self._process is not None
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run has not ended within {limit_s:g} s; {self.tail()}") from None

    def judge(self) -> Trained:
        """What its lineage trained."""
        return judge(self.trained(), self.task.expected)

    def tail(self, count: int = 2000) -> str:
        """The end of what it printed."""
        return f"the end of {self.log}:\n{self.log.read_text(errors='replace')[-count:]}"

    def secrets_found(self) -> list[str]:
        """Files in its folder that hold the servers' key."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return [str(path) for path in files if SECRET.encode() in path.read_bytes()]

    # --- what is done to it --------------------------------------------------------------------------------------

    def kill_trainer(self) -> bool:
        """By SIGKILL; returns whether there was one."""
        if (pid := self.trainer()) is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.wait_end(30)
        return True

    def end(self) -> None:
        """End whatever is left of it."""
        for pid in self.traces.look():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
