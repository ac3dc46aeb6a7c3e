"""Lossless resume with answers in flight: nothing is trained twice, nothing is left out."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
from pipeline_runs import PickedUp

from swift_rlx.errors import CheckpointError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PROMPTS = 12
STEPS, STOP = 12, 4


@pytest.fixture
def rows(write_rows: Callable[..., Path]) -> Path:
    return write_rows([{"messages": [{"role": "user", "content": f"say {n}"}]} for n in range(PROMPTS)])


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="completion"),
        pytest.param({"train_order": "admission"}, id="admission"),
        pytest.param({"steps_per_generation": 4}, id="inside a generation batch"),
    ],
)
def test_a_resumed_run_trains_each_prompt_once_an_epoch(
    changes: dict[str, Any],
    tiny_model: Path,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = STOP - 1 if "steps_per_generation" in changes else STOP
    options = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": stop} | changes
    whole = PickedUp(monkeypatch)
    pipeline_runs.train(tiny_model, rows, tmp_path / "whole", **options)
    expected = whole.prompts()
    whole.batches.clear()
    checkpoint = next(tmp_path.glob(f"whole/**/checkpoint-{stop}"))
    trainer = pipeline_runs.train(
        tiny_model, rows, tmp_path / "again", resume_from_checkpoint=str(checkpoint), **options
    )
    again = whole.prompts()

    groups = trainer.args.generation_batch_size // trainer.num_generations
    per_batch = max(1, trainer.args.steps_per_generation // trainer.args.gradient_accumulation_steps)
    picked = -(-stop // per_batch) * groups
    lineage = expected[:picked] + again
    assert len(lineage) == len(expected)
    assert Counter(lineage) == Counter(expected), (
        "the surviving lineage trains what an undisturbed run trains"
    )
    if changes.get("train_order") == "admission":
        assert lineage == expected
    assert trainer.policy_version.incarnation == 1
    assert max(whole.staleness()) <= trainer.args.max_staleness


def test_a_checkpoint_of_the_pipeline_is_not_resumed_without_it(
    tiny_model: Path, rows: Path, tmp_path: Path
) -> None:
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    pipeline_runs.train(tiny_model, rows, tmp_path / "out", **options)
    checkpoint = next(tmp_path.glob("out/**/checkpoint-2"))
    with pytest.raises(CheckpointError, match="async_rollout was True and is False"):
        pipeline_runs.train(
            tiny_model,
            rows,
            tmp_path / "sync",
            resume_from_checkpoint=str(checkpoint),
            async_rollout=False,
            rollout_backend="auto",
            **options,
        )
