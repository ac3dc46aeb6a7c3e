"""Training with shared prompts, in one process and on two ranks, against training without."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
import torch

from swift_rlx.trainers import shared_prompt

PLUGIN = Path(runs.__file__).with_name("fixed_rollout.py")
STEPS = 3
LOGGED = ("loss", "grad_norm", "kl", "entropy/mean", "entropy/max", "entropy/min")


@pytest.fixture
def without_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the plugin's completions and reward into this process for one test."""
    from swift.rewards import orms
    from swift.rlhf_trainers import GRPOTrainer

    monkeypatch.setattr(GRPOTrainer, "_generate_completions", GRPOTrainer._generate_completions)
    monkeypatch.setitem(orms, "unevenly_scored", None)
    import fixed_rollout

    fixed_rollout.install()


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Those that this process lays out for a batch of the run."""
    made: list[Any] = []
    lay_out = shared_prompt.lay_out

    def counted(*args: Any) -> Any:
        made.append(lay_out(*args))
        return made[-1]

    monkeypatch.setattr(shared_prompt, "lay_out", counted)
    return made


def options(**changes: Any) -> dict[str, Any]:
    """12 completions a step, 4 a prompt; a batch is used twice, so that the ratio and the loss are not trivial."""
    return {
        "rlhf_type": "rloo",
        "beta": 0.05,
        "kl_in_reward": False,
        "log_entropy": True,
        "reward_funcs": ["unevenly_scored"],
        "num_generations": 4,
        "per_device_train_batch_size": 12,
        "gradient_accumulation_steps": 1,
        "num_iterations": 2,
        "max_completion_length": 24,
        "max_steps": STEPS,
        "temperature": 0.8,
        "dataset_shuffle": False,
        "train_dataloader_shuffle": False,
    } | changes


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.timeout(240)
def test_three_steps_are_the_same_with_the_prompts_shared(
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    without_sampling: None,
    layouts: list[Any],
) -> None:
    data = write_rows(
        [{"messages": [{"role": "user", "content": "Say " + "one " * n}], "row": n} for n in range(9)]
    )
    plain, shared, ranks = tmp_path / "plain", tmp_path / "shared", tmp_path / "ranks"
    runs.train(tiny_model, data, plain, **options())
    assert not layouts
    runs.train(tiny_model, data, shared, **options(share_prompt=True))
    assert [layout.num_prompts for layout in layouts[1:]] == [3] * len(layouts[1:])
    assert (
        len(layouts) >= 1 + STEPS + 2
    )  # the probe, the losses, and what two batches are measured with before
    on_ranks = options(share_prompt=True, per_device_train_batch_size=6, gradient_checkpointing=True)
    run = runs.swift(
        runs.arguments(tiny_model, data, ranks, **on_ranks, external_plugins=str(PLUGIN), ddp_backend="gloo"),
        NPROC_PER_NODE="2",
    )
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [runs.log_lines(output)[:STEPS] for output in (plain, shared, ranks)]
    for one, two, three in zip(*lines, strict=True):
        for name in LOGGED:
            assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-5), name
            assert three[name] == pytest.approx(one[name], rel=1e-5, abs=1e-5), name
    assert max(abs(line["loss"]) for line in lines[0]) > 1e-3
    assert min(line["grad_norm"] for line in lines[0]) > 1e-2


@pytest.mark.slow
def test_all_weights_are_trained_the_same_with_a_reference_model(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, without_sampling: None
) -> None:
    trained = []
    for share in (False, True):
        output = tmp_path / str(share)
        changes = {"tuner_type": "full", "save_strategy": "steps", "save_steps": STEPS, "learning_rate": 1e-3}
        runs.train(tiny_model, write_rows(9), output, **options(share_prompt=share, **changes))
        trained.append(runs.weights(output / f"checkpoint-{STEPS}"))
    plain, shared = trained
    assert plain.keys() == shared.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(shared[name], tensor, rtol=0.0, atol=1e-4)
