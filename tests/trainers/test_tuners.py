"""LoRA, DoRA and full training, and the reference that the KL is measured from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
import torch

from swift_rlx.errors import ConfigError

TUNERS = {"lora": {}, "dora": {"use_dora": True}, "full": {"tuner_type": "full"}}
TYPES = ("rloo", "reinforce_pp")


def varied(completions: list[str], row: list[int], **_: Any) -> list[float]:
    return [len(set(text)) / 10 + 0.01 * number for text, number in zip(completions, row, strict=True)]


@pytest.fixture
def train(tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path) -> Callable[..., list[float]]:
    """Trains `tiny_model` in `tmp_path / name`, with a checkpoint a step; gives the KL of each step."""
    data = write_rows()

    def run(name: str, **options: Any) -> list[float]:
        saving = {"save_strategy": "steps", "save_steps": 1}
        runs.train(tiny_model, data, tmp_path / name, reward_funcs=[varied], **saving | options)
        return [line["kl"] for line in runs.log_lines(tmp_path / name) if "kl" in line]

    return run


def moved(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest change of a weight."""
    return max((tensor - other[name]).abs().max().item() for name, tensor in one.items())


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.parametrize("tuner", TUNERS)
@pytest.mark.parametrize("rlhf_type", TYPES)
def test_weights_move_and_kl_starts_at_zero(
    rlhf_type: str, tuner: str, train: Callable[..., list[float]], tmp_path: Path
) -> None:
    first, second = train("run", rlhf_type=rlhf_type, beta=0.05, **TUNERS[tuner])

    assert abs(first) < 1e-6
    assert abs(second) > 1e-3
    one, two = (runs.weights(tmp_path / "run" / f"checkpoint-{step}") for step in (1, 2))
    assert moved(one, two) > 1e-3
    assert any("lora_magnitude_vector" in name for name in one) == (tuner == "dora")
    assert any("lora" in name for name in one) == (tuner != "full")


@pytest.mark.slow
@pytest.mark.parametrize("tuner", ["lora", "full"])
@pytest.mark.parametrize("rlhf_type", TYPES)
def test_the_reference_stays_where_it_was_over_a_resume(
    rlhf_type: str, tuner: str, train: Callable[..., list[float]], tmp_path: Path
) -> None:
    options = {"rlhf_type": rlhf_type, "beta": 0.05, "max_steps": 3, **TUNERS[tuner]}
    unbroken = train("unbroken", **options)
    resumed = train("resumed", **options, resume_from_checkpoint=str(tmp_path / "unbroken" / "checkpoint-1"))

    assert len(unbroken) == 3
    assert resumed == unbroken[1:]


@pytest.mark.slow
@pytest.mark.parametrize("rlhf_type", [*TYPES, "reinforce_pp_baseline"])
def test_an_adapter_as_start_and_as_reference(
    rlhf_type: str, train: Callable[..., list[float]], tmp_path: Path
) -> None:
    train("earlier", rlhf_type="rloo", beta=0.0)
    earlier = tmp_path / "earlier" / "checkpoint-2"
    options = {"rlhf_type": rlhf_type, "beta": 0.05, "ref_adapters": [str(earlier)]}
    first, second, third = train("run", **options, adapters=[str(earlier)], max_steps=3)

    assert abs(first) < 1e-6
    assert abs(second) > 1e-3
    checkpoint = tmp_path / "run" / "checkpoint-1"
    assert moved(runs.weights(earlier), runs.weights(checkpoint)) > 1e-3
    # A reference that had moved in the unbroken run, or was the base model after the resume, would show here.
    resumed = train("resumed", **options, resume_from_checkpoint=str(checkpoint), max_steps=3)
    assert resumed == [second, third]


@pytest.mark.slow
def test_a_reference_other_than_the_start_is_said_and_a_lost_one_refused(
    train: Callable[..., list[float]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from swift.utils import get_logger

    monkeypatch.setattr(get_logger(), "propagate", True)
    train("earlier", rlhf_type="rloo", beta=0.0)
    earlier = [str(tmp_path / "earlier" / "checkpoint-2")]
    assert "bare base model" not in caplog.text
    first, *_ = train("from-base", rlhf_type="rloo", adapters=earlier)
    assert abs(first) > 1e-3
    assert "KL is measured from the bare base model" in caplog.text

    train("run", rlhf_type="rloo", adapters=earlier, ref_adapters=earlier)
    checkpoint = str(tmp_path / "run" / "checkpoint-1")
    with pytest.raises(ConfigError, match=r"was trained with --ref_adapters .*checkpoint-2.* give the same"):
        train("resumed", rlhf_type="rloo", resume_from_checkpoint=checkpoint)
    train("weights-only", rlhf_type="rloo", resume_from_checkpoint=checkpoint, resume_only_model=True)
