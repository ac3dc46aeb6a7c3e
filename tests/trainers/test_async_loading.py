"""A real run whose model is not what its files say: the workers have the same one."""

from collections.abc import Callable
from pathlib import Path

import pipeline_runs
import pytest
import runs

from swift_rlx.backends import WeightKind


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_new_tokens_and_other_positions_reach_the_workers(
    tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    words = [f"<word{number}>" for number in range(60)]
    data = write_rows([{"messages": [{"role": "user", "content": f"say {word}"}]} for word in words[:8]])
    trainer = pipeline_runs.train(
        tiny_model, data, tmp_path / "out", max_steps=3,
        new_special_tokens=words, rope_scaling={"rope_type": "linear", "factor": 4.0},
    )  # fmt: skip

    assert trainer.exporter.kind is WeightKind.FULL, "the adapter has no embeddings of new tokens"
    ratios = [
        float(line["offpolicy/max_log_ratio"])
        for line in runs.log_lines(tmp_path / "out")
        if "offpolicy/max_log_ratio" in line
    ]
    assert ratios[0] < 1e-3
