"""Trainers built in Python, without `swift rlhf`: the same defaults, the same checks, the same training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from swift import get_model_processor, get_template
from swift.rlhf_trainers.arguments import GRPOConfig

import swift_rlx
from swift_rlx.errors import ConfigError

TRAINERS = {
    "rloo": "RLOOTrainer",
    "reinforce_pp": "ReinforcePPTrainer",
    "reinforce_pp_baseline": "ReinforcePPBaselineTrainer",
}
QUICK: dict[str, Any] = {
    "num_generations": 4,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_completion_length": 6,
    "max_steps": 2,
    "use_cpu": True,
    "bf16": False,
    "check_model": False,
    "report_to": [],
    "dataloader_num_workers": 0,
    "dataloader_persistent_workers": False,
    "dataloader_prefetch_factor": None,
}


def varied(completions: list[str], row: list[int], **_: Any) -> list[float]:
    return [len(set(text)) / 10 + 0.01 * number for text, number in zip(completions, row, strict=True)]


@pytest.fixture
def build(tiny_model: Path, tmp_path: Path) -> Callable[..., Any]:
    """A trainer of a quick run; keywords go to the configuration, `also` to the trainer."""

    def make(
        trainer: str = "RLOOTrainer", lora: bool = True, also: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        model, processor = get_model_processor(str(tiny_model), model_type="llama", torch_dtype=torch.float32)
        config = swift_rlx.RLXConfig(output_dir=str(tmp_path / "run"), **QUICK | options)
        rows = [{"messages": [{"role": "user", "content": f"Say {row}"}], "row": row} for row in range(16)]
        keywords = {
            "model": get_peft_model(model, LoraConfig(target_modules="all-linear")) if lora else model,
            "args": config,
            "template": get_template(processor, template_type="chatml", truncation_strategy="left"),
            "train_dataset": Dataset.from_list(rows),
            "reward_funcs": [varied],
        }
        return getattr(swift_rlx, trainer)(**keywords | (also or {}))

    return make


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.parametrize("rlhf_type", TRAINERS)
def test_a_trainer_trains_with_the_defaults_of_its_type(
    rlhf_type: str,
    build: Callable[..., Any],
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
) -> None:
    from swift import RLHFArguments

    options = runs.arguments(tiny_model, write_rows(), tmp_path, rlhf_type=rlhf_type, reward_funcs=["format"])
    by_command = RLHFArguments(**options | {"report_to": ["none"]}).training_args
    trainer = build(TRAINERS[rlhf_type])
    for name in (
        "rlx_type",
        "beta",
        "kl_in_reward",
        "group_baseline",
        "reward_clip",
        "advantage_estimator",
        "scale_rewards",
        "disable_dropout",
        "remove_unused_columns",
    ):
        assert getattr(trainer.args, name) == getattr(by_command, name), name

    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.train()
    after = dict(trainer.model.named_parameters())
    assert max((after[name] - weight).abs().max().item() for name, weight in before.items()) > 1e-7
    assert trainer.state.log_history[-1]["train_runtime"] > 0


@pytest.mark.slow
def test_the_same_run_by_arguments_and_in_python_gives_the_same_weights(
    build: Callable[..., Any], tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    options = {"learning_rate": 1e-3, "lr_scheduler_type": "constant", "seed": 7, "temperature": 0.8}
    same = {
        "num_train_epochs": 1,
        "dataset_shuffle": False,
        "gradient_checkpointing": False,
        "weight_decay": 0.1,
    }
    options |= same
    by_arguments = runs.train(
        tiny_model,
        write_rows(),
        tmp_path / "by-arguments",
        rlhf_type="rloo",
        reward_funcs=[varied],
        beta=0.0,
        tuner_type="full",
        **options,
    )
    in_python = build(lora=False, beta=0.0, async_rollout=False, **options)
    in_python.train()

    expected = by_arguments.model.state_dict()
    for name, tensor in in_python.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(
    ("options", "also", "sentence"),
    [
        ({"loss_type": "dr_grpo"}, {}, "--loss_type dr_grpo cannot be used with --rlhf_type rloo"),
        ({"advantage_estimator": "gae"}, {}, "--advantage_estimator gae contradicts"),
        ({"num_generations": 1}, {}, "--num_generations 1 is refused for --rlhf_type rloo"),
        ({"group_baseline": "ema"}, {}, "--group_baseline ema does not belong to --rlhf_type rloo"),
        ({"reward_on_error": "ignore"}, {}, "--reward_on_error got 'ignore'"),
        ({}, {"reward_funcs": None}, "RLOOTrainer has no reward to learn from"),
        ({"lora": False}, {}, r"beta 0\.05 measures the KL from a reference, and there is none"),
    ],
)
def test_what_cannot_work_is_refused_as_by_the_command(
    options: dict[str, Any], also: dict[str, Any], sentence: str, build: Callable[..., Any]
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        build(also=also, **options)


def test_what_enable_async_rollout_is_given_is_checked_and_after_an_error_nothing_has_changed(
    build: Callable[..., Any],
) -> None:
    trainer = build(async_rollout=False, steps_per_generation=1, num_iterations=3)
    before = dict(trainer.args.__dict__)
    for settings, sentence in [
        ({"max_staleness": -1}, "--max_staleness -1 is refused"),
        ({"rollout_retries": -2}, "--rollout_retries -2 is refused"),
        ({"train_orders": "admission"}, "enable_async_rollout takes no train_orders; besides"),
        ({}, "--num_iterations 3 trains a generation batch in 3 micro-batches"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            trainer.enable_async_rollout(**settings)
        assert trainer.args.__dict__ == before

    trainer = build()
    trainer.enable_async_rollout(num_workers=2, train_order="admission", rollout_timeout_s=9.0)
    assert (trainer.args.rollout_workers, trainer.args.train_order) == (2, "admission")
    assert trainer.args.rollout_timeout_s == 9.0


def test_the_pipeline_is_not_added_to_a_trainer_without_the_column_of_its_environment(
    build: Callable[..., Any],
) -> None:
    trainer = build(async_rollout=False, gym_env="count_vowels")
    with pytest.raises(ConfigError, match=r"with an environment.*give RLXConfig async_rollout=True"):
        trainer.enable_async_rollout()


def test_a_configuration_belongs_to_one_algorithm(build: Callable[..., Any], tmp_path: Path) -> None:
    trainer = build()
    with pytest.raises(ConfigError, match="belongs to a trainer of rloo and cannot be used for reinforce_pp"):
        build("ReinforcePPTrainer", also={"args": trainer.args})
    with pytest.raises(ConfigError, match=r"got args of type GRPOConfig; give a swift_rlx\.RLXConfig"):
        build(also={"args": GRPOConfig(output_dir=str(tmp_path), use_cpu=True)})
