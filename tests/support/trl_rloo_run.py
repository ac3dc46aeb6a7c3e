"""The quickstart task with TRL's RLOOTrainer: `python trl_rloo_run.py <config.yaml>`, the file that `swift rlhf` reads.

What ms-swift sets otherwise than TRL by default (weight decay, beta2, all linear layers) is set as ms-swift does.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from datasets import Dataset
from peft import LoraConfig
from reward_clock import RewardClock
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import RLOOConfig, RLOOTrainer

SAME_NAME = (
    *(
        "num_generations",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "temperature",
        "top_p",
    ),
    *("max_completion_length", "beta", "learning_rate", "lr_scheduler_type", "max_steps", "seed"),
    *("logging_steps", "report_to", "output_dir", "save_strategy"),
)
AS_MS_SWIFT = {"weight_decay": 0.1, "adam_beta2": 0.95, "gradient_checkpointing": True}


def prompts(config: dict[str, Any]) -> Dataset:
    """Conversations with the system prompt in front, in the order of the file."""
    front = {"role": "system", "content": config["system"]}
    lines = Path(config["dataset"]).read_text(encoding="utf-8").splitlines()
    return Dataset.from_list([{"prompt": [front, *json.loads(line)["messages"]]} for line in lines])


def reward_of(plugin: Path) -> Any:
    """The quickstart's reward, called as TRL does it."""
    spec = importlib.util.spec_from_file_location(plugin.stem, plugin)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]

    def brief_fact(completions: list[list[dict[str, str]]], **columns: Any) -> list[float]:
        return [module.score(turns[0]["content"]) for turns in completions]

    return brief_fact


def main(path: Path) -> None:
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    arguments = RLOOConfig(
        **{name: config[name] for name in SAME_NAME},
        **AS_MS_SWIFT,
        top_k=max(0, config["top_k"]),
        bf16=False,
        shuffle_dataset=False,
    )
    trainer = RLOOTrainer(
        AutoModelForCausalLM.from_pretrained(config["model"], dtype=torch.float32),
        reward_of(Path(config["external_plugins"][0])),
        arguments,
        train_dataset=prompts(config),
        processing_class=AutoTokenizer.from_pretrained(
            config["model"], padding_side="left", truncation_side="left"
        ),
        callbacks=[RewardClock()],
        peft_config=LoraConfig(
            r=config["lora_rank"],
            lora_alpha=config["lora_alpha"],
            lora_dropout=config["lora_dropout"],
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
