"""REINFORCE++ with a running mean as baseline, and a reward by name: comments in generated code.

python commented_code.py --model Qwen/Qwen2.5-Coder-0.5B-Instruct
"""

import argparse

import torch
from datasets import Dataset
from swift import Swift, get_model_processor, get_template
from swift.tuners import LoraConfig

from swift_rlx import ReinforcePPTrainer, RLXConfig, register_reward

TASKS = (
    "adds two numbers",
    "counts the vowels in a text",
    "reverses a list",
    "finds the largest number in a list",
    "checks whether a year is a leap year",
    "converts Celsius to Fahrenheit",
    "removes duplicates from a list",
    "computes a factorial",
)


@register_reward("comment_density", version="1")
def comment_density(response: str) -> float:
    """The share of lines that begin with a comment sign. plugins/comment_bonus is the thorough version."""
    lines = response.strip().splitlines()
    return sum(line.lstrip().startswith(("#", "//")) for line in lines) / max(len(lines), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a model id or a folder")
    parser.add_argument("--model_type", help="where ms-swift cannot tell it from the model")
    parser.add_argument("--template", help="likewise")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--max_completion_length", type=int, default=512)
    parser.add_argument("--output_dir", default="output_commented_code")
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    model, processor = get_model_processor(
        options.model, model_type=options.model_type, torch_dtype=torch.bfloat16 if on_gpu else torch.float32
    )
    prompts = [f"Write a Python function that {task}. Reply with code only." for task in TASKS]
    trainer = ReinforcePPTrainer(
        model=Swift.prepare_model(model, LoraConfig(r=8, lora_alpha=32, target_modules="all-linear")),
        args=RLXConfig(
            output_dir=options.output_dir,
            group_baseline="ema",  # A = G - V, V a running mean of the rewards
            ema_baseline_decay=0.95,
            num_generations=1,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            max_completion_length=options.max_completion_length,
            max_steps=options.steps,
            learning_rate=2e-4,
            logging_steps=1,
            bf16=on_gpu,
            check_model=False,
            report_to=[],
        ),
        template=get_template(processor, template_type=options.template),
        train_dataset=Dataset.from_list(
            [{"messages": [{"role": "user", "content": text}]} for text in prompts]
        ),
        reward_funcs=["comment_density"],
    )
    trainer.train()
    for line in trainer.state.log_history:
        if "reward" in line:
            print(f"step {line['step']}: comment density {line['reward']:.3f}")
    print(f"running mean of the reward: {trainer.ema_baseline.value:.3f}")


if __name__ == "__main__":
    main()
