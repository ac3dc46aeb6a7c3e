"""RLOO from Python: model and template from ms-swift, the reward a function of yours, then `RLOOTrainer`.

python train.py --model Qwen/Qwen2.5-0.5B-Instruct
"""

import argparse

import torch
from datasets import Dataset
from swift import Swift, get_model_processor, get_template
from swift.tuners import LoraConfig

from swift_rlx import RLOOTrainer, RLXConfig

THINGS = [
    "rain",
    "glass",
    "iron",
    "bees",
    "the moon",
    "tea",
    "chess",
    "salt",
    "owls",
    "rice",
    "trains",
    "paper",
]


def brief_sentence(completion: str, **columns: object) -> float:
    """Half for at most ten words, half for a full stop at the end."""
    words = len(completion.split())
    return 0.5 * (0 < words <= 10) + 0.5 * completion.rstrip().endswith(".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a model id or a folder")
    parser.add_argument("--model_type", help="where ms-swift cannot tell it from the model")
    parser.add_argument("--template", help="likewise")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output_dir", default="output_python_api")
    options = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    model, processor = get_model_processor(
        options.model, model_type=options.model_type, torch_dtype=torch.bfloat16 if on_gpu else torch.float32
    )
    template = get_template(processor, template_type=options.template)
    model = Swift.prepare_model(model, LoraConfig(r=8, lora_alpha=32, target_modules="all-linear"))
    prompts = [f"Tell me one fact about {thing} in at most ten words." for thing in THINGS]
    dataset = Dataset.from_list([{"messages": [{"role": "user", "content": prompt}]} for prompt in prompts])

    config = RLXConfig(  # fields left out have the defaults of the trainer's algorithm and of ms-swift
        output_dir=options.output_dir,
        num_generations=4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        max_completion_length=32,
        max_steps=options.steps,
        learning_rate=2e-4,
        logging_steps=1,
        bf16=on_gpu,
        check_model=False,  # do not ask ModelScope whether the model is up to date
        report_to=[],
    )
    trainer = RLOOTrainer(
        model=model, args=config, template=template, train_dataset=dataset, reward_funcs=[brief_sentence]
    )
    trainer.train()
    for line in trainer.state.log_history:
        if "reward" in line:
            print(f"step {line['step']}: reward {line['reward']:.3f} +- {line['reward_std']:.3f}")


if __name__ == "__main__":
    main()
