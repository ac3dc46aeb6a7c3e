"""The mean reward of a model on held-out prompts, by plain transformers: no code that trains is involved."""

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from swift_rlx.rewards import checked_reward, resolve_reward

SAMPLES = 3  # completions a prompt
BATCH = 64  # completions at a time
SEED = 1234


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn; the values are those of training."""

    temperature: float
    max_new_tokens: int
    system: str | None


def read_prompts(path: Path, system: str | None) -> list[list[dict[str, str]]]:
    """One conversation a line, `system` in front."""
    front = [{"role": "system", "content": system}] if system else []
    with path.open(encoding="utf-8") as lines:
        return [front + json.loads(line)["messages"] for line in lines]


def load_reward(name: str, plugin: Path | None) -> Callable[[list[str]], list[float]]:
    """The reward `name` as training calls it. `plugin` registers it, as a file of external_plugins."""
    if plugin is not None:
        spec = importlib.util.spec_from_file_location(plugin.stem, plugin)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(f"{plugin} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[plugin.stem] = module
        spec.loader.exec_module(module)
    return checked_reward(resolve_reward(name))  # type: ignore[return-value]


class Sampler:
    """The model in `folder`, with or without a LoRA adapter. On a GPU where there is one."""

    def __init__(self, folder: Path, adapter: Path | None = None) -> None:
        logging.disable_progress_bar()
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        if adapter is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
        self.model = model.to(self.device).eval()

    @torch.no_grad()
    def complete(self, prompts: list[list[dict[str, str]]], sampling: Sampling) -> list[str]:
        """One completion a prompt, drawn from softmax(logits / temperature)."""
        texts = self.tokenizer.apply_chat_template(prompts, tokenize=False, add_generation_prompt=True)
        batch = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        batch = batch.to(self.device)
        tokens = self.model.generate(
            **batch,
            do_sample=True,
            temperature=sampling.temperature,
            top_k=0,
            top_p=1.0,
            max_new_tokens=sampling.max_new_tokens,
        )
        return self.tokenizer.batch_decode(tokens[:, batch.input_ids.shape[1] :], skip_special_tokens=True)


def measure(
    sampler: Sampler,
    prompts: list[list[dict[str, str]]],
    sampling: Sampling,
    reward: Callable[[list[str]], list[float]],
) -> list[list[float]]:
    """Rewards [P, S] of S completions for each of the P prompts; the same random seed at every call."""
    torch.manual_seed(SEED)
    rows = [prompt for prompt in prompts for _ in range(SAMPLES)]
    completions: list[str] = []
    for start in range(0, len(rows), BATCH):
        completions += sampler.complete(rows[start : start + BATCH], sampling)
        print(f"\r  {len(completions)}/{len(rows)} completions", end="", flush=True)
    print(f", the first: {completions[0]!r}", flush=True)
    rewards = reward(completions)
    return [rewards[start : start + SAMPLES] for start in range(0, len(rows), SAMPLES)]
