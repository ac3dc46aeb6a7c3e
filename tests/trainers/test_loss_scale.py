"""The step's gradient is a mean over the whole optimizer step, however it is cut into micro-batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import train

pytestmark = pytest.mark.slow


class Uneven:
    """Rewards that leave some rows unscored, more of them in some micro-batches than in others."""

    def __deepcopy__(self, memo: Any) -> "Uneven":
        return self

    def __call__(self, completions: list[str], row: list[int]) -> list[float | None]:
        seen: dict[int, int] = {}
        rewards: list[float | None] = []
        for number in row:
            index = seen[number] = seen.get(number, -1) + 1
            rewards.append(
                None if (number * 4 + index) % 5 < 2 and number < 4 else float(index * (1 + number))
            )
        return rewards


def fixed_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Completions that are a function of prompt and place in the group, of different lengths."""
    from swift_rlx.trainers import ReinforcePPBaselineTrainer, ReinforcePPTrainer, RLOOTrainer

    def generate(self: Any, samples: list[Any]) -> list[Any]:
        seen: dict[str, int] = {}
        for sample in self._preprocess_inputs(samples):
            text = sample.messages[-1]["content"]
            index = seen[text] = seen.get(text, -1) + 1
            tokens = [
                20 + (len(text) + 7 * index + step) % 200 for step in range(1 + (index + len(text)) % 4)
            ]
            sample.response_token_ids = tokens
            sample.messages.append({"role": "assistant", "content": tokens})
            sample.finish_reason = "length" if index == 3 else "stop"
        return samples

    for trainer in (RLOOTrainer, ReinforcePPTrainer, ReinforcePPBaselineTrainer):
        monkeypatch.setattr(trainer, "_generate_completions", generate)


def first_gradient(monkeypatch: pytest.MonkeyPatch, *args: Any, **changes: Any) -> torch.Tensor:
    from accelerate import Accelerator

    kept: list[torch.Tensor] = []

    def keep(self: Any, parameters: Any, *_: Any, **__: Any) -> torch.Tensor:
        parameters = list(parameters)
        kept.append(torch.cat([p.grad.flatten().clone() for p in parameters if p.grad is not None]))
        return torch.tensor(1.0)

    with monkeypatch.context() as patch:
        patch.setattr(Accelerator, "clip_grad_norm_", keep)
        train(*args, **changes)
    return kept[0]


CUTS = {
    "one micro-batch": {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1},
    "two": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
    "four": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
    "micro-batches that cut groups": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8},
    "half of a generation batch": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "steps_per_generation": 8,
    },
}


@pytest.mark.parametrize("overlong_filter", [False, True])
@pytest.mark.parametrize("rlhf_type", ["rloo", "reinforce_pp", "reinforce_pp_baseline"])
def test_the_gradient_does_not_depend_on_how_a_step_is_cut(
    rlhf_type: str,
    overlong_filter: bool,
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixed_completions(monkeypatch)
    common: dict[str, Any] = {
        "rlhf_type": rlhf_type,
        "reward_funcs": [Uneven()],
        "max_steps": 1,
        "dataset_shuffle": False,
        "tuner_type": "full",
        "beta": 0.1,
        "overlong_filter": overlong_filter,
    }
    data = write_rows(8)
    cuts = dict(CUTS)
    if rlhf_type != "rloo":
        del cuts[
            "half of a generation batch"
        ]  # whitening is over the generation batch, which is then another one
    gradients = [
        first_gradient(monkeypatch, tiny_model, data, tmp_path / name, **common | cut)
        for name, cut in cuts.items()
    ]
    assert gradients[0].norm() > 1e-3
    for name, gradient in zip(cuts, gradients, strict=True):
        torch.testing.assert_close(
            gradient, gradients[0], rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}"
        )


def test_generation_batches_shorter_than_a_step_share_it_evenly(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed_completions(monkeypatch)
    common: dict[str, Any] = {
        "rlhf_type": "rloo",
        "reward_funcs": [Uneven()],
        "max_steps": 1,
        "dataset_shuffle": False,
        "tuner_type": "full",
        "beta": 0.0,
        "per_device_train_batch_size": 8,
    }
    rows = write_rows(4)
    shared = first_gradient(
        monkeypatch,
        tiny_model,
        rows,
        tmp_path / "shared",
        **common,
        gradient_accumulation_steps=2,
        steps_per_generation=1,
    )
    halves = [
        first_gradient(
            monkeypatch, tiny_model, path, tmp_path / path.stem, **common, gradient_accumulation_steps=1
        )
        for path in halves_of(rows)
    ]
    torch.testing.assert_close(shared, (halves[0] + halves[1]) / 2, rtol=1e-4, atol=1e-6)


def halves_of(path: Path) -> list[Path]:
    lines = path.read_text().splitlines(keepends=True)
    parts = []
    for name, part in (("first", lines[:2]), ("second", lines[2:])):
        parts.append(path.with_name(f"{name}.jsonl"))
        parts[-1].write_text("".join(part))
    return parts
