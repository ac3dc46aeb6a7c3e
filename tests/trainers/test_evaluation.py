"""Evaluation: each row once, whatever the batch size, and without a trace in training."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import log_lines, train

pytestmark = pytest.mark.slow

EVAL_ROWS = 5


class ByRow:
    """The reward of a completion is its row's number; evaluation rows are numbered from 100."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __deepcopy__(self, memo: Any) -> "ByRow":
        return self

    def __call__(self, completions: list[str], row: list[int]) -> list[float]:
        self.seen += row
        return [
            float(number % 100) + 0.001 * len(set(text))
            for number, text in zip(row, completions, strict=True)
        ]


@pytest.fixture
def eval_rows(write_rows: Callable[..., Path]) -> Path:
    rows = [
        {"messages": [{"role": "user", "content": f"Count to {row}"}], "row": 100 + row}
        for row in range(EVAL_ROWS)
    ]
    return write_rows(rows, "eval.jsonl")


@pytest.mark.parametrize("eval_batch", [4, 8, 12])
def test_each_row_is_evaluated_once_per_completion(
    eval_batch: int, tiny_model: Path, write_rows: Callable[..., Path], eval_rows: Path, tmp_path: Path
) -> None:
    reward = ByRow()
    train(
        tiny_model,
        write_rows(16),
        tmp_path / "run",
        rlhf_type="rloo",
        reward_funcs=[reward],
        val_dataset=[str(eval_rows)],
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=eval_batch,
    )
    evaluated = Counter(row for row in reward.seen if row >= 100)
    assert evaluated == {100 + row: 4 for row in range(EVAL_ROWS)}
    [line] = [line for line in log_lines(tmp_path / "run") if "eval_reward" in line]
    # the mean over rows, not over batches: the last batch is shorter
    assert line["eval_reward"] == pytest.approx(sum(range(EVAL_ROWS)) / EVAL_ROWS, abs=0.01)


def test_evaluation_leaves_training_alone_and_repeats_itself(
    tiny_model: Path, write_rows: Callable[..., Path], eval_rows: Path, tmp_path: Path
) -> None:
    options = {"rlhf_type": "rloo", "learning_rate": 0.0, "max_steps": 4}
    evaluating = {
        "val_dataset": [str(eval_rows)],
        "eval_strategy": "steps",
        "eval_steps": 2,
        "eval_on_start": True,
        "per_device_eval_batch_size": 4,
    }
    data, runs = write_rows(16), []
    for name, extra in (("plain", {}), ("evaluating", evaluating)):
        reward = ByRow()
        train(tiny_model, data, tmp_path / name, reward_funcs=[reward], **options | extra)
        runs.append(
            [line for line in log_lines(tmp_path / name) if "loss" in line and "eval_loss" not in line]
        )
    assert [line["reward"] for line in runs[0]] == [line["reward"] for line in runs[1]]
    rewards = {line["eval_reward"] for line in log_lines(tmp_path / "evaluating") if "eval_reward" in line}
    assert len(rewards) == 1, "the weights did not move, so three evaluations must agree"


def test_the_best_checkpoint_is_chosen_by_the_evaluation_reward(
    tiny_model: Path, write_rows: Callable[..., Path], eval_rows: Path, tmp_path: Path
) -> None:
    trainer = train(
        tiny_model,
        write_rows(16),
        tmp_path / "run",
        rlhf_type="rloo",
        reward_funcs=[ByRow()],
        val_dataset=[str(eval_rows)],
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        load_best_model_at_end=True,
        per_device_eval_batch_size=4,
    )
    best = max(line["eval_reward"] for line in log_lines(tmp_path / "run") if "eval_reward" in line)
    assert trainer.args.metric_for_best_model == "reward"
    assert trainer.args.greater_is_better
    assert trainer.state.best_metric == pytest.approx(best)
