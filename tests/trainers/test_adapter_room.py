"""Workers are started with room for adapters where adapters are published, and only there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
import runs

from swift_rlx.backends import WeightKind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class Planned(Exception):
    """All that is looked at is decided."""


@pytest.mark.parametrize(
    ("changes", "kind", "room"),
    [
        ({}, WeightKind.ADAPTER, 16),
        ({"lora_rank": 40}, WeightKind.ADAPTER, 40),
        ({"lora_rank": 600}, WeightKind.FULL, 0),  # over vLLM's largest
        ({"use_dora": True}, WeightKind.FULL, 0),
        ({"tuner_type": "full"}, WeightKind.FULL, 0),
    ],
    ids=["lora", "wide lora", "too wide lora", "dora", "full"],
)
def test_room_for_adapters_follows_from_what_is_published_to_vllm(
    changes: dict[str, Any],
    kind: WeightKind,
    room: int,
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from swift_rlx.trainers import pipeline_plan

    found = []

    def end(trainer: Any, plan: Any, first: Any) -> None:
        found.append((first.kind, plan.specs[0].max_adapter_rank))
        trainer.weight_directory.remove()
        raise Planned

    monkeypatch.setattr(pipeline_plan, "_pipeline", end)
    with pytest.raises(Planned):
        pipeline_runs.train(tiny_model, write_rows(8), tmp_path / "out", rollout_backend="vllm", **changes)
    assert found == [(kind, room)]


@pytest.mark.vllm
def test_an_adapter_that_vllm_cannot_load_is_published_merged_beside_answers_in_flight(
    write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    from tiny_llama import save_tiny_llama

    base = tmp_path / "model"
    save_tiny_llama(base, hidden_size=64, num_attention_heads=2, num_key_value_heads=1)
    trainer = pipeline_runs.train(
        base, write_rows(12), tmp_path / "out",
        rollout_backend="vllm", use_dora=True, max_steps=6, max_completion_length=100,
    )  # fmt: skip

    assert trainer.exporter.kind is WeightKind.FULL
    lines = [line for line in runs.log_lines(tmp_path / "out") if "rollout/failovers" in line]
    assert len(lines) >= 6
    assert sum(float(line["rollout/failovers"]) for line in lines) == 0
