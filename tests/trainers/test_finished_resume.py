"""A run that has trained all of its steps is resumed: nothing is left to train, which is no failure."""

from collections.abc import Callable
from pathlib import Path

import pipeline_runs
import pytest
import runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
LAST = "checkpoint-2"


@pytest.mark.parametrize("is_async", [True, False], ids=["pipeline", "synchronous"])
def test_the_command_ends_well_and_says_so(
    is_async: bool, tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    rows, first = write_rows(12), tmp_path / "first"  # an epoch is six steps: the run ends within it
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2, "reward_funcs": ["vowels"]}
    options |= {"rlhf_type": "rloo", "external_plugins": [str(pipeline_runs.PLUGIN)]}
    options |= {"async_rollout": is_async, "rollout_backend": "transformers" if is_async else None}
    runs.train(tiny_model, rows, first, **{k: v for k, v in options.items() if v is not None})
    again = tmp_path / "again"
    done = runs.swift(
        runs.arguments(tiny_model, rows, again, resume_from_checkpoint=str(first / LAST), **options)
    )

    assert done.returncode == 0, done.stderr[-3000:]
    said = [line for line in (done.stdout + done.stderr).splitlines() if "nothing is left to train" in line]
    assert len(said) == 1
    assert "the checkpoint is of step 2, and the run ends at step 2; to go on raise --max_steps" in said[0]
    assert not any("loss" in line for line in runs.log_lines(again)), "no step was trained"


def test_with_more_steps_the_finished_run_goes_on(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    rows, options = write_rows(12), {"save_strategy": "steps", "save_steps": 2}
    pipeline_runs.train(tiny_model, rows, tmp_path / "first", max_steps=2, **options)
    checkpoint = str(tmp_path / "first" / LAST)
    trainer = pipeline_runs.train(
        tiny_model, rows, tmp_path / "again", max_steps=4, resume_from_checkpoint=checkpoint, **options
    )
    assert trainer.state.global_step == 4
