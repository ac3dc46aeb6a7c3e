"""Conversations in the pipeline: several turns are one answer, and an environment's words never train."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
import runs
from pipeline_runs import PickedUp

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
TURNS_PLUGIN = str(Path(pipeline_runs.__file__).with_name("turns_plugin.py"))


def plugins() -> list[str]:
    return [str(pipeline_runs.PLUGIN), TURNS_PLUGIN]


def evaluated(write_rows: Callable[..., Path]) -> dict[str, Any]:
    """Options of an evaluation after the last step."""
    held_out = str(write_rows(3, "held_out.jsonl"))
    return {
        "val_dataset": [held_out],
        "eval_strategy": "steps",
        "eval_steps": 4,
        "per_device_eval_batch_size": 4,
    }


def evaluation(output: Path) -> dict[str, Any]:
    [line] = [line for line in runs.log_lines(output) if "eval_reward" in line]
    return line


@pytest.mark.parametrize("loss", ["rloo", "reinforce_pp"])
def test_turns_are_one_answer_whose_log_probs_are_those_of_the_training(
    loss: str,
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    picked_up = PickedUp(monkeypatch)
    pipeline_runs.train(
        tiny_model, write_rows(12), tmp_path / "out",
        rlhf_type=loss, multi_turn_scheduler="ask_twice", external_plugins=plugins(), max_steps=4,
        **evaluated(write_rows),
    )  # fmt: skip

    rows = [row for batch in picked_up.batches for row in batch.rows]
    assert all('"num_turns":2' in row.turns for row in rows)
    assert max(len(row.tokens()) for row in rows) == 12, "two turns of six tokens"
    first = runs.log_lines(tmp_path / "out")[0]
    assert first["num_turns"] == 2
    assert first["rollout/rows_unusable"] == 0
    assert first["offpolicy/max_log_ratio"] < 1e-3, "the trainer sees the conversation that the worker saw"
    assert evaluation(tmp_path / "out")["eval_num_turns"] == 2


def test_the_reward_of_an_environment_trains(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {
        "multi_turn_scheduler": "gym_scheduler",
        "use_gym_env": True,
        "gym_env": "count_vowels",
        "reward_funcs": None,
        "external_plugins": plugins(),
        "max_steps": 4,
        **evaluated(write_rows),
    }
    pipeline_runs.train(tiny_model, write_rows(12), tmp_path / "out", **options)

    lines = [line for line in runs.log_lines(tmp_path / "out") if "reward" in line]
    assert len(lines) == 4
    assert all(line["reward"] > 0 for line in lines)
    assert evaluation(tmp_path / "out")["eval_reward"] > 0
    assert all(line["reward"] == pytest.approx(line["reward/gym_reward/mean"], abs=1e-6) for line in lines)


def test_a_scheduler_that_makes_several_rows_ends_the_run_at_its_first_answer(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    from swift_rlx.errors import ConfigError

    with pytest.raises(ConfigError, match="the multi-turn scheduler Branch returned 2 rows for one prompt"):
        pipeline_runs.train(
            tiny_model, write_rows(12), tmp_path / "out",
            multi_turn_scheduler="branch", external_plugins=plugins(), max_steps=4,
        )  # fmt: skip
