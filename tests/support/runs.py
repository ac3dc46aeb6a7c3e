"""Real `swift rlhf` runs for tests: in this process (seconds), or as the user's command."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

FAST: dict[str, Any] = {
    "model_type": "llama",
    "template": "chatml",
    "torch_dtype": "float32",
    "fp16": False,
    "bf16": False,
    "tuner_type": "lora",
    "lora_rank": 4,
    "lora_alpha": 8,
    "num_generations": 4,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_completion_length": 6,
    "max_steps": 2,
    "logging_steps": 1,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "warmup_ratio": 0.0,
    "report_to": "none",
    "save_strategy": "no",
    "check_model": False,
    "add_version": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "split_dataset_ratio": 0.0,
    "dataset_num_proc": 1,
    "dataloader_num_workers": 0,
    "dataloader_persistent_workers": False,
    "seed": 7,
    "async_rollout": False,
}
STOCK_TYPES = ("grpo", "dpo", "gkd", "ppo", "kto")


def arguments(model: Path, data: Path, output: Path, /, **changes: Any) -> dict[str, Any]:
    """The options of a quick run; `changes` win. None drops an option."""
    options = FAST | {"model": str(model), "dataset": [str(data)], "output_dir": str(output)} | changes
    if options.get("rlhf_type") in STOCK_TYPES and "async_rollout" not in changes:
        del options["async_rollout"]  # ours alone
    return {name: value for name, value in options.items() if value is not None}


def train(model: Path, data: Path, output: Path, /, **changes: Any) -> Any:
    """Run `rlhf_main` in this process and return the trainer."""
    from swift import RLHFArguments
    from swift.pipelines.train.rlhf import SwiftRLHF

    trainers: list[Any] = []

    class Kept(SwiftRLHF):
        def train(self, trainer: Any) -> Any:
            trainers.append(trainer)
            return super().train(trainer)

    options = arguments(model, data, output, **changes)
    options["report_to"] = [options["report_to"]]
    Kept(RLHFArguments(**options)).main()
    return trainers[0]


def write_rows(path: Path, rows: int | Sequence[dict[str, Any]] = 16) -> Path:
    """Rows as a jsonl file; a number is that of prompts, with theirs in the column `row`."""
    if isinstance(rows, int):
        rows = [{"messages": [{"role": "user", "content": f"Say {row}"}], "row": row} for row in range(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def command(options: dict[str, Any]) -> list[str]:
    """`options` as the words of a `swift rlhf` command line."""
    words = [os.path.join(os.path.dirname(sys.executable), "swift"), "rlhf"]
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        words += [
            f"--{name}",
            *(str(item).lower() if isinstance(item, bool) else str(item) for item in values),
        ]
    return words


def free_port() -> str:
    """A port that nobody listens on, for the ranks of a run to meet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def swift(options: dict[str, Any] | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the user's command on options, or on a file of them; nothing is raised for a failing one."""
    words = [*command({}), str(options)] if isinstance(options, Path) else command(options)
    return subprocess.run(
        words,
        env=os.environ | {"MASTER_PORT": free_port()} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def weights(folder: Path) -> dict[str, Any]:
    """The tensors of a checkpoint, adapter or model."""
    name = "adapter_model.safetensors"
    return load_file(folder / (name if (folder / name).exists() else "model.safetensors"))


def log_lines(output: Path) -> list[dict[str, Any]]:
    """The training log of a run, one dict a step."""
    lines = (output / "logging.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
