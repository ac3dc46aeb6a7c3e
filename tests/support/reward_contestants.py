"""Who runs the quickstart task for the benchmark of the time to a reward, with which options and on which cores."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from runs import free_port

SUPPORT = Path(__file__).resolve().parent
QUICKSTART = SUPPORT.parents[1] / "examples" / "quickstart"
NOT_OURS = {"save_steps", "save_only_model", "ENV"}
OURS_ALONE = {"share_prompt"}
MAX_MODEL_LEN = 256


@dataclass(frozen=True)
class Contestant:
    """`changes` to the quickstart's rloo.yaml; `script`: run instead of `swift rlhf`."""

    changes: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    script: str | None = None
    is_ours: bool = False
    is_asynchronous: bool = False
    needs_vllm: bool = False


STOCK = {"rlhf_type": "grpo", "advantage_estimator": "rloo"}
COLOCATED = {
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_max_model_len": MAX_MODEL_LEN,
    "vllm_enforce_eager": True,
}
# As our workers have it: no binding of threads, no compiled step, no plugin that needs what a CPU build lacks.
VLLM_ON_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_PLUGINS": "none",
}
CONTESTANTS = {
    "stock": Contestant(STOCK),
    "stock vllm": Contestant(STOCK | COLOCATED, VLLM_ON_CPU, plugins=("unpacked_vllm.py",), needs_vllm=True),
    "trl": Contestant({}, script="trl_rloo_run.py"),
    "ours synchronous": Contestant({"async_rollout": False}, is_ours=True),
    "ours": Contestant({"rollout_backend": "transformers"}, is_ours=True, is_asynchronous=True),
    "ours vllm": Contestant(
        {"rollout_backend": "vllm", "vllm_max_model_len": MAX_MODEL_LEN},
        is_ours=True,
        is_asynchronous=True,
        needs_vllm=True,
    ),
}
OWN_CORE = "own core"
SETTINGS = {OWN_CORE: 1, "free 1": 1, "free 2": 2}
"""Threads. With cores of their own a synchronous contestant, whose generation and training take turns, may use both."""


def is_allowed(contestant: Contestant, setting: str) -> bool:
    """Workers and trainer share the cores: twice the threads have to find room."""
    return not contestant.is_asynchronous or 2 * SETTINGS[setting] <= len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Task:
    """What is the same for all. `model`: a folder."""

    model: Path
    steps: int
    max_tokens: int

    def config(self, contestant: Contestant, seed: int, folder: Path) -> dict[str, Any]:
        """The quickstart's options, on its prompts in the order of `seed`, and the clock."""
        config = yaml.safe_load((QUICKSTART / "rloo.yaml").read_text(encoding="utf-8"))
        lines = (QUICKSTART / "prompts_train.jsonl").read_text(encoding="utf-8").splitlines()
        random.Random(seed).shuffle(lines)
        prompts = folder / "prompts.jsonl"
        prompts.write_text("\n".join(lines) + "\n", encoding="utf-8")
        plugins = [QUICKSTART / "brief_fact.py", SUPPORT / "reward_clock.py"]
        left_out = NOT_OURS if contestant.is_ours else NOT_OURS | OURS_ALONE
        return {name: value for name, value in config.items() if name not in left_out} | {
            "model": str(self.model),
            "dataset": str(prompts),
            "dataset_shuffle": False,
            "train_dataloader_shuffle": False,
            "external_plugins": [
                str(path) for path in (*plugins, *(SUPPORT / name for name in contestant.plugins))
            ],
            "callbacks": ["reward_clock"],
            "max_steps": self.steps,
            "max_completion_length": self.max_tokens,
            "seed": seed,
            "data_seed": seed,
            "save_strategy": "no",
            "add_version": False,
            "output_dir": str(folder / "output"),
            **contestant.changes,
        }


def environment(contestant: Contestant, setting: str, folder: Path) -> dict[str, str]:
    """Variables of the command."""
    threads = str(SETTINGS[setting])
    paths = [str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
    cores = {}
    if setting == OWN_CORE and contestant.is_asynchronous:
        first, second = sorted(os.sched_getaffinity(0))[:2]
        cores = {"OWN_CORES": f"{first},{second}"}
        paths.insert(0, str(SUPPORT / "own_core"))
    return {
        **os.environ,
        **{"USE_HF": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        **{"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        "PYTHONPATH": os.pathsep.join(paths),
        "MASTER_PORT": free_port(),
        "REWARD_CLOCK": str(folder),
        **contestant.environment,
        **cores,
    }


def _machine_busy_s() -> float:
    """Seconds that all cores together have worked since the system's start."""
    fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, irq, softirq, *_ = (int(one) for one in fields)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _children_busy_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(contestant: Contestant, task: Task, seed: int, setting: str, folder: Path) -> dict[str, Any]:
    """One training in a process of its own, in an empty folder: its events, and how busy others kept the cores."""
    folder.mkdir(parents=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(task.config(contestant, seed, folder)), encoding="utf-8")
    words = [str(Path(sys.executable).parent / "swift"), "rlhf", str(path)]
    if contestant.script is not None:
        words = [sys.executable, str(SUPPORT / contestant.script), str(path)]
    busy_s, own_s, begin_s = _machine_busy_s(), _children_busy_s(), time.monotonic()
    with (folder / "output.txt").open("wb") as output:
        status = subprocess.run(
            words,
            env=environment(contestant, setting, folder),
            cwd=SUPPORT.parents[1],
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    seconds = time.monotonic() - begin_s
    if status:
        text = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"the run in {folder} ended with status {status}:\n{text[-4000:]}")
    others_s = _machine_busy_s() - busy_s - (_children_busy_s() - own_s)
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "begin_s": begin_s,
        "command_s": seconds,
        "others_cores": max(0.0, others_s / seconds),
        "events": [json.loads(line) for line in lines],
    }
