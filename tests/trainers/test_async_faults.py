"""Faults of the pipeline's parts under a real run."""

import threading
from collections.abc import Callable
from pathlib import Path

import pipeline_runs
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PROMPTS = 12


@pytest.fixture
def rows(write_rows: Callable[..., Path]) -> Path:
    return write_rows([{"messages": [{"role": "user", "content": f"say {n}"}]} for n in range(PROMPTS)])


def test_an_engine_that_cannot_start_ends_the_run_with_its_words(
    tiny_model: Path, rows: Path, tmp_path: Path
) -> None:
    from swift_rlx.errors import RlxError

    with pytest.raises(RlxError, match="not EngineSpec"):
        pipeline_runs.train(tiny_model, rows, tmp_path / "out", rollout_backend="json:loads", max_steps=2)
    assert not any(thread.name == "rollout" for thread in threading.enumerate())
