"""What is refused after the data set is known and before the first step."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import train

from swift_rlx.errors import ConfigError, RewardError


def constant(completions: list[str]) -> list[float]:
    return [1.0] * len(completions)


def test_a_data_set_smaller_than_a_generation_batch_is_refused(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="the data set has 1 prompts, and one generation batch takes 2"):
        train(tiny_model, write_rows(1), tmp_path / "run", rlhf_type="rloo", reward_funcs=[constant])


LONG = {"messages": [{"role": "user", "content": "one two " * 300}], "row": 99}


@pytest.fixture
def with_long_prompt(write_rows: Callable[..., Path]) -> Path:
    rows = [{"messages": [{"role": "user", "content": f"Say {row}"}], "row": row} for row in range(12)]
    return write_rows([*rows[:3], LONG, *rows[3:]])


def test_a_prompt_longer_than_the_limit_is_refused_by_its_text(
    tiny_model: Path, with_long_prompt: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"1 of 13 prompts are longer than the 506 tokens.*'one two .*\(\d+ tokens\)"
    ):
        train(tiny_model, with_long_prompt, tmp_path / "run", rlhf_type="rloo", reward_funcs=[constant])


@pytest.mark.slow
def test_a_prompt_longer_than_the_limit_is_dropped_when_asked(
    tiny_model: Path, with_long_prompt: Path, tmp_path: Path
) -> None:
    trainer = train(
        tiny_model,
        with_long_prompt,
        tmp_path / "run",
        rlhf_type="rloo",
        reward_funcs=[constant],
        truncation_strategy="delete",
        max_length=100,
    )
    assert sorted(trainer.train_dataset["row"]) == list(range(12))


def test_a_completion_that_leaves_no_room_for_prompts_is_refused(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="--max_completion_length 512 leaves no room for a prompt"):
        train(
            tiny_model,
            write_rows(16),
            tmp_path / "run",
            rlhf_type="rloo",
            reward_funcs=[constant],
            max_completion_length=512,
        )


def test_a_reward_that_needs_a_missing_column_is_refused(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    def graded(completions: list[str], answer: list[str]) -> list[float]:
        return [0.0] * len(completions)

    with pytest.raises(ConfigError, match=r"reward 'graded' .* needs columns \['answer'\], the data set has"):
        train(tiny_model, write_rows(16), tmp_path / "run", rlhf_type="rloo", reward_funcs=[graded])


def test_a_reward_that_reads_the_answer_is_told_how_to_keep_it(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    def graded(completions: list[str], answer: list[str]) -> list[float]:
        return [0.0] * len(completions)

    rows = write_rows([{"query": f"What is {row} + 1?", "answer": str(row + 1)} for row in range(16)])
    with pytest.raises(
        ConfigError,
        match=r"reward 'graded' .* needs columns \['answer'\].*--columns .*--disable_auto_column_mapping",
    ):
        train(tiny_model, rows, tmp_path / "run", rlhf_type="rloo", reward_funcs=[graded])


def test_a_column_that_would_break_rewards_is_refused(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"Say {row}"}], "completions": "x", "row": row}
        for row in range(8)
    ]
    with pytest.raises(ConfigError, match="a column 'completions', which collides"):
        train(tiny_model, write_rows(rows), tmp_path / "run", rlhf_type="rloo", reward_funcs=[constant])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ([1.0], "8 completions"),
        (1.0, "float"),
        (["a"] * 8, "row 0"),
        ([float("inf")] * 8, "returned inf"),
        ([float("nan")] * 8, "returned nan"),
    ],
)
def test_a_reward_that_is_no_reward_stops_the_run(
    returned: Any, sentence: str, tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    def broken(completions: list[str]) -> Any:
        return returned

    with pytest.raises(RewardError, match=sentence):
        train(tiny_model, write_rows(16), tmp_path / "run", rlhf_type="rloo", reward_funcs=[broken])
    shutil.rmtree(tmp_path / "run", ignore_errors=True)


@pytest.mark.slow
def test_reward_on_error_none_leaves_the_row_unscored(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    from runs import log_lines

    def odd(completions: list[str], row: list[int]) -> list[float]:
        if 3 in row:
            raise KeyError("row three")
        return [float(len(text) % 3) for text in completions]

    options: dict[str, Any] = {"rlhf_type": "rloo", "reward_funcs": [odd], "max_steps": 8}
    with pytest.raises(RewardError, match=r"reward 'odd' .*KeyError.*row three"):
        train(tiny_model, write_rows(16), tmp_path / "raise", **options)
    train(tiny_model, write_rows(16), tmp_path / "none", reward_on_error="none", **options)
    lines = [line for line in log_lines(tmp_path / "none") if "reward/odd/failures" in line]
    assert sum(line["reward/odd/failures"] for line in lines) == 4
    assert sum(line["rows/unscored"] for line in lines) == pytest.approx(0.5)
    train(tiny_model, write_rows(16), tmp_path / "value", reward_on_error="value:-1", **options)
    assert all(
        line["rows/unscored"] == 0 for line in log_lines(tmp_path / "value") if "rows/unscored" in line
    )


@pytest.mark.slow
def test_a_reward_that_is_zero_everywhere_at_first_is_warned_about(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from swift.utils import get_logger

    def zero(completions: list[str]) -> list[float]:
        return [0.0] * len(completions)

    get_logger().propagate = True
    try:
        train(tiny_model, write_rows(16), tmp_path / "run", rlhf_type="rloo", reward_funcs=[zero, constant])
    finally:
        get_logger().propagate = False
    assert "the reward zero is 0 for every completion of the first generation batch" in caplog.text
    assert "the reward constant is 0" not in caplog.text
