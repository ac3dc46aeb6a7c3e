"""A resumed run continues the unbroken one: same prompts, same samples, bit-equal weights."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runs import train, weights

from swift_rlx.algorithms import EMABaseline
from swift_rlx.errors import CheckpointError, ConfigError
from swift_rlx.trainers.reinforce_pp import ReinforcePPTrainer
from swift_rlx.trainers.resume import sample_digest

STEPS = 6


class Recorder:
    """A reward that notes which prompts it saw, once per generation batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __deepcopy__(self, memo: Any) -> "Recorder":
        return self  # ms-swift copies the arguments; the test wants the original

    def __call__(self, completions: list[str], row: list[int], **columns: Any) -> list[float]:
        self.batches.append(sorted(set(row)))
        return [len(set(text)) / 10 + 0.01 * number for text, number in zip(completions, row, strict=True)]


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def run(model: Path, data: Path, output: Path, **changes: Any) -> Recorder:
    recorder = Recorder()
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": STEPS}
    train(model, data, output, **{"reward_funcs": [recorder]} | saving | changes)
    return recorder


def test_a_checkpoint_without_a_running_mean_is_refused_by_a_run_that_needs_one() -> None:
    trainer = SimpleNamespace(ema_baseline=EMABaseline(0.9))
    with pytest.raises(CheckpointError, match=r"trained without --group_baseline ema .* drop the flag"):
        ReinforcePPTrainer.load_algorithm_state(trainer, {})
    ReinforcePPTrainer.load_algorithm_state(trainer, {"ema_baseline": {"value": 0.5}})
    assert trainer.ema_baseline.value == 0.5
    ReinforcePPTrainer.load_algorithm_state(SimpleNamespace(ema_baseline=None), {})


VARIANTS = {
    "within an epoch": ({}, 16, (1, 3)),
    "inside a generation batch": ({"steps_per_generation": 4}, 16, (1, 3)),
    "in later epochs": ({}, 6, (3, 4, 5)),
    "inside a reused generation batch of the second epoch": (
        {"num_iterations": 2, "steps_per_generation": 4},
        4,
        (3, 4, 5),
    ),
    "with a shorter generation batch than a step": ({"steps_per_generation": 1}, 16, (3,)),
}


@pytest.mark.slow
@pytest.mark.parametrize("rlhf_type", ["rloo", "reinforce_pp"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_resume_is_bit_equal(
    variant: str, rlhf_type: str, tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    changes, rows, stops = VARIANTS[variant]
    data = write_rows(rows)
    unbroken = run(tiny_model, data, tmp_path / "unbroken", rlhf_type=rlhf_type, **changes)
    final = weights(tmp_path / "unbroken" / f"checkpoint-{STEPS}")
    assert not equal(final, weights(tmp_path / "unbroken" / "checkpoint-1"))
    for stop in stops:
        resumed = run(
            tiny_model,
            data,
            tmp_path / f"from-{stop}",
            rlhf_type=rlhf_type,
            resume_from_checkpoint=str(tmp_path / "unbroken" / f"checkpoint-{stop}"),
            **changes,
        )
        assert resumed.batches == unbroken.batches[len(unbroken.batches) - len(resumed.batches) :]
        assert equal(final, weights(tmp_path / f"from-{stop}" / f"checkpoint-{STEPS}")), f"from step {stop}"


@pytest.mark.slow
def test_resume_goes_on_with_the_running_mean_and_the_resampled_rows(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    changes = {"rlhf_type": "reinforce_pp", "group_baseline": "ema", "dynamic_sample": True}
    data = write_rows(8)
    run(tiny_model, data, tmp_path / "unbroken", **changes)
    checkpoint = tmp_path / "unbroken" / "checkpoint-3"
    run(tiny_model, data, tmp_path / "resumed", resume_from_checkpoint=str(checkpoint), **changes)
    last = f"checkpoint-{STEPS}"
    assert equal(weights(tmp_path / "unbroken" / last), weights(tmp_path / "resumed" / last))


@pytest.mark.slow
def test_what_is_saved_is_needed(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bit-equality above is not there without our state: leave it out on loading and the weights differ."""
    from swift_rlx.trainers import RLOOTrainer

    data, changes = write_rows(16), {"rlhf_type": "rloo", "steps_per_generation": 4}
    run(tiny_model, data, tmp_path / "unbroken", **changes)
    monkeypatch.setattr(RLOOTrainer, "_load_state", lambda self, folder: None)
    checkpoint = str(tmp_path / "unbroken" / "checkpoint-3")
    run(tiny_model, data, tmp_path / "resumed", resume_from_checkpoint=checkpoint, **changes)
    last = f"checkpoint-{STEPS}"
    assert not equal(weights(tmp_path / "unbroken" / last), weights(tmp_path / "resumed" / last))


def test_data_sets_of_equal_length_are_told_apart() -> None:
    def rows(count: int, changed: int = -1) -> list[dict[str, Any]]:
        return [
            {"messages": [{"role": "user", "content": "other" if row == changed else f"say {row}"}]}
            for row in range(count)
        ]

    assert sample_digest(rows(40)) == sample_digest(rows(40))
    assert len({sample_digest(rows(40, changed)) for changed in (-1, 0, 39)}) == 3
    assert sample_digest(rows(1)) != sample_digest(rows(1, 0))


@pytest.mark.slow
def test_resume_refuses_what_it_cannot_continue(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    data = write_rows(16)
    run(tiny_model, data, tmp_path / "run", rlhf_type="rloo", steps_per_generation=4, max_steps=3)
    checkpoint = tmp_path / "run" / "checkpoint-3"

    def short(completion: str, **columns: Any) -> float:
        return float(len(completion) < 9)

    def resume(**changes: Any) -> None:
        options = {"rlhf_type": "rloo", "steps_per_generation": 4, "resume_from_checkpoint": str(checkpoint)}
        run(tiny_model, data, tmp_path / "again", **options | changes)

    with pytest.raises(ConfigError, match="was trained with rlhf_type rloo and cannot be resumed"):
        resume(rlhf_type="reinforce_pp")
    with pytest.raises(CheckpointError, match="with the rewards Recorder, this one has short; give the same"):
        resume(reward_funcs=[short])
    with pytest.raises(CheckpointError, match="seed was 7 and is 8"):
        resume(seed=8)
    text = data.read_text(encoding="utf-8")
    data.write_text(text.replace("Say 1", "Tell me 1"), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"data was .* and is .*; give the same values"):
        resume()
    data.write_text(text, encoding="utf-8")
    state = checkpoint / "rlx" / "state.json"
    whole = state.read_text(encoding="utf-8")
    state.write_text(whole.replace('"order": {', '"order": {"dropped_later": 1,'), encoding="utf-8")
    with pytest.raises(CheckpointError, match="dropped_later was 1 and is None"):
        resume()
    state.write_text(whole, encoding="utf-8")
    buffer = checkpoint / "rlx" / "buffer-rank0.safetensors"
    buffer.write_bytes(buffer.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"buffer-rank0\.safetensors cannot be read"):
        resume()
    shutil.rmtree(checkpoint / "rlx")
    with pytest.raises(CheckpointError, match=r"incomplete, it has no rlx/state\.json"):
        resume()
    resume(resume_only_model=True)
    assert (tmp_path / "again" / f"checkpoint-{STEPS}").is_dir()
