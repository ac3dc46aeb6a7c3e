"""Which batches `--log_completions` keeps: as in a run of ms-swift's own, as docs/*/flags.md says."""

import json
from collections.abc import Callable
from pathlib import Path

import pipeline_runs
import pytest
import runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3, 3]), (3, [1, 3, 3])])
@pytest.mark.parametrize("rlhf_type", ["grpo", "rloo"])
def test_a_line_is_written_with_the_log_and_has_its_last_batch(
    rlhf_type: str,
    every: int,
    steps: list[int],
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
) -> None:
    changes = {"async_rollout": True} if rlhf_type == "rloo" else {}
    runs.train(
        tiny_model, write_rows(12), tmp_path / "out", rlhf_type=rlhf_type, max_steps=3, logging_steps=every,
        log_completions=True, reward_funcs=["vowels"], external_plugins=[str(pipeline_runs.PLUGIN)], **changes,
    )  # fmt: skip
    text = (tmp_path / "out" / "completions.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [int(line["step"][0]) for line in lines] == steps
    assert lines[-1]["completion"] == lines[-2]["completion"]
    assert {len(line["completion"]) for line in lines} == {8}
