"""What a training step saves when the prompt of a group is computed once: `--share_prompt true` against without.

Run it as a script. It prints a table in CPU milliseconds of one thread (medians of pairs that take turns), writes a
JSON file, and exits with 1 if log-probs or gradients differ by more than rounding. The model is SmolLM2-135M in
float32 with the quickstart's LoRA, on the quickstart's prompts; completions are random tokens of unequal lengths.

    forward    log-probs of the completions, by ms-swift and by us
    backward   gradients of the adapter
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(USE_HF="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
REPOSITORY = Path(__file__).resolve().parents[2]
RESULT = Path(__file__).resolve().parent / "results" / "shared_prompt.json"
QUICKSTART = REPOSITORY / "examples" / "quickstart"
MODEL = REPOSITORY / "output" / "quickstart" / "SmolLM2-135M-Instruct"
PASSES = ("plain", "shared")
PARTS = ("forward", "backward")
LIMIT = 1e-3
"""Nats at a log-prob, and share of the gradient's norm; rounding in float32 makes less than a tenth of it."""


def prompts_of(folder: Path, count: int) -> list[list[int]]:
    """The first prompts of the quickstart as token ids."""
    import yaml
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    system = yaml.safe_load((QUICKSTART / "rloo.yaml").read_text(encoding="utf-8"))["system"]
    lines = (QUICKSTART / "prompts_train.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    chats = [[{"role": "system", "content": system}, *json.loads(line)["messages"]] for line in lines]
    return [
        tokenizer.encode(
            tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False),
            add_special_tokens=False,
        )
        for chat in chats
    ]


def batch_of(prompts: list[list[int]], group_size: int, max_tokens: int, vocabulary: int) -> tuple[Any, Any]:
    """Model inputs and the micro-batch as ms-swift collates them; completions of `max_tokens` / 4 and more."""
    import torch

    generator = torch.Generator().manual_seed(0)
    rows = []
    for prompt in prompts:
        for _ in range(group_size):
            length = int(torch.randint(max_tokens // 4, max_tokens + 1, (), generator=generator))
            rows.append((prompt, torch.randint(3, vocabulary, (length,), generator=generator).tolist()))
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids, attended, trains = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(3))
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor([*prompt, *answer])
        attended[row, :end] = 1
        trains[row, len(prompt) : end] = 1
    keep = width - min(map(len, prompts))
    batch = SimpleNamespace(completion_mask=trains[:, -keep:].bool(), logits_to_keep=keep)
    return {"input_ids": ids, "attention_mask": attended}, batch


def model_of(folder: Path) -> Any:
    """As the quickstart trains it, its adapter moved from the start."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    from swift_rlx.trainers.shared_attention import use_shared_attention

    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules="all-linear", r=8, lora_alpha=32, init_lora_weights=False)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), config)
    use_shared_attention(model)  # without a layout it is the attention that it takes the place of
    return model.train()


def passes() -> dict[str, Any]:
    """The two ways to log-probs, on as much of a trainer as they need."""
    from swift.rlhf_trainers import GRPOTrainer

    from swift_rlx.trainers.shared_prompt import SharedPromptMixin

    class Trainer(SharedPromptMixin, GRPOTrainer):
        def __init__(self, share_prompt: bool) -> None:
            self.args, self.temperature = SimpleNamespace(share_prompt=share_prompt), 1.0
            self.template = SimpleNamespace(padding_free=False, sequence_parallel_size=1)
            self.model_kwarg_keys = ("use_cache", "logits_to_keep")

    return {name: Trainer(name == "shared")._get_per_token_logps_and_entropies_single for name in PASSES}


def measure(
    model: Any, inputs: Any, batch: Any, pairs: int
) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """Median CPU milliseconds of each part, and how far the results of the first pair, which warms up, are apart."""
    import torch

    weights = torch.linspace(-1, 1, batch.completion_mask.numel()).view(batch.completion_mask.shape)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in PASSES}
    found: dict[str, Any] = {}
    for _ in range(pairs + 1):
        for name, log_probs in passes().items():
            marks = [time.process_time()]
            logprobs = log_probs(model, dict(inputs), batch)[0] * batch.completion_mask
            marks.append(time.process_time())
            (logprobs * weights).sum().backward()
            marks.append(time.process_time())
            gradient = torch.cat(
                [each.grad.flatten() for each in model.parameters() if each.grad is not None]
            )
            model.zero_grad()
            if name in found:
                times[name].append((marks[1] - marks[0], marks[2] - marks[1]))
            else:
                found[name] = logprobs.detach(), gradient
    (plain, plain_gradient), (shared, shared_gradient) = found.values()
    apart = {
        "logprobs": (plain - shared).abs().max().item(),
        "gradient": ((plain_gradient - shared_gradient).norm() / plain_gradient.norm()).item(),
    }
    medians = {
        name: {
            f"{part}_ms": 1000 * statistics.median(one[at] for one in each) for at, part in enumerate(PARTS)
        }
        for name, each in times.items()
    }
    ratios = [sum(plain) / sum(shared) for plain, shared in zip(*times.values(), strict=True)]
    return medians, {"apart": apart, "ratio": statistics.median(ratios), "ratios": ratios}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="What sharing prompts saves in a training step.")
    parser.add_argument("--model", type=Path, default=MODEL, help="a model folder; made if it is not there")
    parser.add_argument("--prompts", type=int, default=4, help="in the batch")
    parser.add_argument("--group-size", type=int, default=4, help="completions of a prompt")
    parser.add_argument("--max-tokens", type=int, default=32, help="of the longest completion")
    parser.add_argument("--pairs", type=int, default=5, help="one without and one with each")
    parser.add_argument("--output", type=Path, default=RESULT, help="where the JSON file goes")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    sys.path.insert(0, str(QUICKSTART))
    import torch
    from prepare_model import prepare

    from swift_rlx.trainers.prompt_layout import lay_out

    torch.set_num_threads(1)
    folder = prepare(options.model)
    model, prompts = model_of(folder), prompts_of(folder, options.prompts)
    inputs, batch = batch_of(prompts, options.group_size, options.max_tokens, model.config.vocab_size)
    medians, compared = measure(model, inputs, batch, options.pairs)
    layout = lay_out(
        **{f"{name}_BL": each for name, each in inputs.items()}, completion_mask_BT=batch.completion_mask
    )
    tokens = {"plain": inputs["input_ids"].numel(), "shared": layout.num_tokens}
    result = {
        "machine": {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "batch": {name: getattr(options, name) for name in ("prompts", "group_size", "max_tokens", "pairs")},
        "tokens": tokens,
        **medians,
        **compared,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"{'':8}{'tokens':>8}{'forward':>10}{'backward':>10}  CPU ms")
    for name in PASSES:
        print(f"{name:8}{tokens[name]:8}" + "".join(f"{medians[name][f'{part}_ms']:10.0f}" for part in PARTS))
    print(f"shared prompts: {compared['ratio']:.2f} times as fast")
    return 0 if max(compared["apart"].values()) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
