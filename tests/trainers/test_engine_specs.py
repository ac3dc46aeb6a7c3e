"""How workers are described to start: room for adapters, the longest text, their share of the memory, their time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
import runs

from swift_rlx.backends import WeightKind, vllm_contract

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class Planned(Exception):
    """All that is looked at is decided."""


@pytest.fixture
def plan_of(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Any, Any]]:
    """The plan of a run with vLLM, which need not be installed for that, and its first weights."""
    from swift_rlx.trainers import pipeline_plan

    def plan_of(rows: Any = 8, **changes: Any) -> tuple[Any, Any]:
        found = []

        def end(trainer: Any, plan: Any, first: Any, rewards: Any) -> None:
            found.append((plan, first))
            trainer.weight_directory.remove()
            raise Planned

        monkeypatch.setattr(pipeline_plan, "_pipeline", end)
        monkeypatch.setattr(vllm_contract, "installed_version", lambda: "0.32.0")
        options = {"rollout_backend": "vllm"} | changes
        with pytest.raises(Planned):
            pipeline_runs.train(tiny_model, write_rows(rows), tmp_path / "out", **options)
        return found[0]

    return plan_of


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
    changes: dict[str, Any], kind: WeightKind, room: int, plan_of: Callable[..., tuple[Any, Any]]
) -> None:
    plan, first = plan_of(**changes)
    assert first.kind is kind
    assert plan.crew.specs[0].max_adapter_rank == room


def test_vllm_on_a_cpu_is_sized_for_the_longest_text_of_the_run(
    plan_of: Callable[..., tuple[Any, Any]],
) -> None:
    question = "a" * 100
    rows = [{"messages": [{"role": "user", "content": question[:length]}]} for length in (3, 100, 7, 9)]
    for row in rows:
        row["messages"].append({"role": "assistant", "content": "not a part of the prompt" * 20})

    def sized_for(rows: Any, **changes: Any) -> int:
        return plan_of(rows, **changes)[0].crew.specs[0].max_model_len

    most = sized_for(rows, max_completion_length=20)
    assert 100 + 20 < most < 100 + 20 + 400
    assert sized_for(rows, max_completion_length=30) == most + 10
    assert sized_for(rows[2:] * 2, max_completion_length=20) == most - 91
    assert sized_for(rows, max_length=110, max_completion_length=20) == 130
    assert sized_for(rows, rollout_backend="transformers") == 512, "its own limit"
    assert sized_for(rows, vllm_max_model_len=200) == 200
    assert sized_for([{**row, "tools": "[]"} for row in rows]) == 512, "a template words tools as it likes"


def test_workers_share_the_memory_of_a_cpu_and_have_the_time_that_was_given(
    plan_of: Callable[..., tuple[Any, Any]],
) -> None:
    plan, _ = plan_of(rollout_workers=4, rollout_start_timeout_s=1234.0)
    assert [spec.memory_share for spec in plan.crew.specs] == [0.25] * 4
    assert plan.crew.start_limit_s == 1234.0


def test_tensors_that_the_trained_model_leaves_in_its_files_are_named(
    plan_of: Callable[..., tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    monkeypatch.setattr(LlamaForCausalLM, "_keys_to_ignore_on_load_unexpected", [r"^mtp.*"])
    assert plan_of()[0].crew.specs[0].not_loaded == ("^mtp.*",)


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
