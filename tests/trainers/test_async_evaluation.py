"""Evaluation beside the pipeline: each row once, on the weights of now, whatever the workers are at (scenario B 12)."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
import runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
EVAL_ROWS, FIRST_EVAL_ROW = 5, 100
Rows = Callable[..., Path]


class ByRow:
    """The reward of a completion is its row's number and a little of its text."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __deepcopy__(self, memo: Any) -> "ByRow":
        return self  # ms-swift copies the arguments; the test wants the original

    def __call__(self, completions: list[str], row: list[int]) -> list[float]:
        self.seen += row
        pairs = zip(row, completions, strict=True)
        return [number % FIRST_EVAL_ROW + 0.001 * len(set(text)) for number, text in pairs]


def test_evaluations_beside_the_pipeline_are_those_without_it(
    tiny_model: Path, write_rows: Rows, tmp_path: Path
) -> None:
    held_out = write_rows(
        [
            {"messages": [{"role": "user", "content": f"Count to {row}"}], "row": FIRST_EVAL_ROW + row}
            for row in range(EVAL_ROWS)
        ],
        "held_out.jsonl",
    )
    data = write_rows(16)

    def evaluate(name: str, **changes: Any) -> list[float]:
        reward = ByRow()
        pipeline_runs.train(
            tiny_model, data, tmp_path / name,
            reward_funcs=[reward], learning_rate=0.0, max_steps=4, val_dataset=[str(held_out)],
            eval_strategy="steps", eval_steps=2, eval_on_start=True, per_device_eval_batch_size=4, **changes,
        )  # fmt: skip
        rows = Counter(number for number in reward.seen if number >= FIRST_EVAL_ROW)
        assert rows == {FIRST_EVAL_ROW + row: 3 * 4 for row in range(EVAL_ROWS)}, (
            "three times four completions"
        )
        return [line["eval_reward"] for line in runs.log_lines(tmp_path / name) if "eval_reward" in line]

    without = evaluate("without", async_rollout=False, rollout_backend="auto")
    assert len(without) == 3
    assert len(set(without)) == 1, "the weights do not move"
    assert evaluate("one") == without
    assert evaluate("two", rollout_workers=2, max_staleness=3) == without
