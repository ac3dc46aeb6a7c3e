"""RLOO's gradient at step 1 against the nearest that ms-swift's own GRPOTrainer can be set to."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from tiny_llama import save_tiny_llama

MAX_COMPLETION_LENGTH = 24
STOCK = {
    "rlhf_type": "grpo",
    "advantage_estimator": "rloo",
    "scale_rewards": "none",
    "kl_in_reward": True,
    "num_iterations": 1,
    "lora_dropout": 0.0,
}
StepOne = Callable[..., tuple[torch.Tensor, dict[str, Any]]]
RLOO_OF_STOCK = STOCK | {"loss_type": "dr_grpo"}


def uneven_reward(completions: list[str], row: list[int], **_: Any) -> list[float]:
    return [len(completion) % 5 + 0.1 * number for completion, number in zip(completions, row, strict=True)]


@pytest.fixture(scope="module")
def stopping_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a likelier end token, so that completions have different lengths."""
    folder = tmp_path_factory.mktemp("stopping") / "llama"
    shutil.copytree(tiny_model, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][2] *= 3.0  # <|im_end|>; the output layer is tied to it
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another random llama with the same tokenizer."""
    folder = tmp_path_factory.mktemp("other") / "llama"
    save_tiny_llama(folder, seed=1)
    return folder


@pytest.fixture
def step_one(
    stopping_model: Path, write_rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StepOne:
    """Trains one step; gives the gradient before it is clipped, as one float64 vector, and the log."""
    seen: list[torch.Tensor] = []
    clip = Accelerator.clip_grad_norm_

    def noted(self: Accelerator, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = list(parameters)
        grads = [p.grad.double().flatten() for p in parameters if p.grad is not None]
        seen.append(torch.cat(grads))
        return clip(self, parameters, *args, **kwargs)

    monkeypatch.setattr(Accelerator, "clip_grad_norm_", noted)
    data = write_rows()

    def run(**options: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        seen.clear()
        options = {"max_completion_length": MAX_COMPLETION_LENGTH, "max_steps": 1} | options
        trainer = runs.train(
            stopping_model, data, tmp_path / options["rlhf_type"], reward_funcs=[uneven_reward], **options
        )
        [gradient] = seen
        return gradient, trainer.state.log_history[0]

    return run


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return (torch.dot(a, b) / (a.norm() * b.norm())).item()


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.parametrize(
    ("beta", "options"),
    [
        (0.0, {}),
        (0.05, {"tuner_type": "full"}),  # with another model as the reference, so that the KL is not 0
    ],
)
def test_gradient_is_that_of_stock_dr_grpo_times_the_maximal_length(
    step_one: StepOne, other_model: Path, beta: float, options: dict[str, Any]
) -> None:
    options = {"beta": beta, **options} | ({"ref_model": str(other_model)} if beta else {})
    ours, log = step_one(rlhf_type="rloo", **options)
    stock, stock_log = step_one(**RLOO_OF_STOCK, **options)

    assert cosine(ours, stock) > 1 - 1e-6
    assert ours.norm() / stock.norm() == pytest.approx(MAX_COMPLETION_LENGTH, rel=1e-4)
    # The comparison means something: lengths and rewards differ, and with beta so do policy and reference.
    assert log["completions/min_length"] < log["completions/mean_length"] < MAX_COMPLETION_LENGTH
    assert log["reward_std"] > 0.5
    if beta:
        assert abs(log["kl"]) > 1.0
        assert log["kl"] == pytest.approx(stock_log["kl"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "at_most"),
    [
        (STOCK, 0.9),  # divides each completion's gradient by its length
        ({"rlhf_type": "grpo"}, 0.9),  # and by its group's standard deviation
    ],
    ids=["stock_rloo", "stock_grpo"],
)
def test_gradient_is_not_that_of_the_stock_defaults(
    step_one: StepOne, options: dict[str, Any], at_most: float
) -> None:
    ours, _ = step_one(rlhf_type="rloo", beta=0.0)
    stock, _ = step_one(**options, beta=0.0)

    assert cosine(ours, stock) < at_most
