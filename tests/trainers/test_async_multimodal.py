"""Real runs with images on the asynchronous pipeline: the workers see what the trainer sees."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
import runs
from pipeline_runs import PickedUp
from tiny_vision import MARK, OPTIONS, save_pictures, save_tiny_vision

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PROMPTS = 8
Rows = Callable[..., Path]


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "llava"
    save_tiny_vision(folder)
    return folder


@pytest.fixture
def rows(write_rows: Rows, tmp_path: Path) -> Path:
    """Images as paths and in the file itself, one or two a row; one row has none."""
    pictures = save_pictures(tmp_path / "pictures", PROMPTS)
    inside = base64.b64encode(pictures[1].read_bytes()).decode()
    images: list[list[str]] = [[str(path)] for path in pictures]
    images[1], images[2], images[3] = [inside], [], [str(pictures[3]), str(pictures[0])]
    return write_rows(
        [
            {"messages": [{"role": "user", "content": MARK * len(each) + "say it"}], "images": each}
            for each in images
        ]
    )


def first(output: Path, name: str) -> float:
    return next(float(line[name]) for line in runs.log_lines(output) if name in line)


def test_workers_see_what_the_trainer_sees(
    seeing: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picked_up = PickedUp(monkeypatch)
    pipeline_runs.train(seeing, rows, tmp_path / "out", rollout_backend="auto", max_steps=5, **OPTIONS)

    assert first(tmp_path / "out", "offpolicy/max_log_ratio") < 1e-3
    assert {line["rollout/rows_unusable"] for line in runs.log_lines(tmp_path / "out") if "loss" in line} == {
        0
    }
    assert len(set(picked_up.prompts()[:PROMPTS])) == PROMPTS
    assert max(picked_up.staleness()) >= 1, "later batches are made ahead of their training"


@pytest.mark.parametrize("change", ["another image", "no image"])
def test_what_the_workers_see_matters(
    seeing: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    from swift_rlx.trainers.prompt_encoding import PromptEncoder

    right = PromptEncoder._model_inputs

    def wrong(self: PromptEncoder, encoded: dict[str, Any]) -> dict[str, Any]:
        inputs = right(self, encoded)
        if change == "no image":
            return {}
        return {name: -value for name, value in inputs.items()}

    monkeypatch.setattr(PromptEncoder, "_model_inputs", wrong)
    pipeline_runs.train(seeing, rows, tmp_path / "out", max_steps=1, **OPTIONS)
    assert first(tmp_path / "out", "offpolicy/max_log_ratio") > 1e-2


def test_no_answer_has_a_token_that_stands_for_an_image(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_vision(tmp_path / "model", mark_bias=50.0)
    picked_up = PickedUp(monkeypatch)
    trainer = pipeline_runs.train(
        tmp_path / "model", rows, tmp_path / "out", max_steps=1, off_policy_correction="none",
        val_dataset=[str(rows)], eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=4, **OPTIONS,
    )  # fmt: skip

    mark = trainer.template.tokenizer.convert_tokens_to_ids(MARK)
    assert not any(mark in row.tokens() for batch in picked_up.batches for row in batch.rows)
    assert trainer.state.global_step == 1
    assert any("eval_reward" in line for line in runs.log_lines(tmp_path / "out"))


def test_a_row_whose_image_is_not_there_is_named(seeing: Path, write_rows: Rows, tmp_path: Path) -> None:
    from swift_rlx.errors import ConfigError

    data = write_rows(
        [{"messages": [{"role": "user", "content": f"{MARK}say"}], "images": [str(tmp_path / "gone.png")]}]
        * 4
    )
    with pytest.raises(
        ConfigError,
        match=r"row 0 of the training data, .*gone.png.*, is refused: .*(FileNotFoundError|UnidentifiedImageError)",
    ):
        pipeline_runs.train(seeing, data, tmp_path / "out", max_steps=1, **OPTIONS)
