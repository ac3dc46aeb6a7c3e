"""The last checkpoint of a run on the pipeline (scenario A 9)."""

import json
from collections.abc import Callable
from pathlib import Path

import pipeline_runs
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
Rows = Callable[..., Path]


def test_the_end_of_an_epoch_is_saved_whatever_save_steps_says(
    tiny_model: Path, write_rows: Rows, tmp_path: Path
) -> None:
    """Ten prompts in generation batches of four: two steps, and two prompts that are left out (scenario A 9)."""
    trainer = pipeline_runs.train(
        tiny_model, write_rows(10), tmp_path / "out",
        num_generations=2, max_steps=-1, num_train_epochs=1, save_strategy="steps", save_steps=1000,
    )  # fmt: skip
    assert trainer.state.global_step == 2
    checkpoint = tmp_path / "out" / "checkpoint-2"
    assert json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["global_step"] == 2
    assert (checkpoint / "rlx" / "state.json").exists()
    assert (checkpoint / "rlx" / "rollout" / "state.json").exists()
