"""Faults of the pipeline's parts under a real run."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
from pipeline_runs import PickedUp

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PROMPTS = 12


@pytest.fixture
def rows(write_rows: Callable[..., Path]) -> Path:
    return write_rows([{"messages": [{"role": "user", "content": f"say {n}"}]} for n in range(PROMPTS)])


def test_a_killed_worker_is_replaced_and_no_prompt_is_lost(
    tiny_model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swift_rlx.trainers.pipeline import RolloutPipeline

    picked_up, killed = PickedUp(monkeypatch), []
    pick_up = RolloutPipeline.pick_up

    def killing(self: RolloutPipeline) -> Any:
        if len(picked_up.batches) == 2:
            killed.append(self.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)
        return pick_up(self)

    monkeypatch.setattr(RolloutPipeline, "pick_up", killing)
    pipeline_runs.train(tiny_model, rows, tmp_path / "out", max_steps=12)

    trained = Counter(picked_up.prompts())
    assert len(killed) == 1
    assert set(trained.values()) == {1}
    assert sum(trained.values()) == 24, "all prompts of two epochs"
    assert max(picked_up.staleness()) <= 2


def test_an_engine_that_cannot_start_ends_the_run_with_its_words(
    tiny_model: Path, rows: Path, tmp_path: Path
) -> None:
    from swift_rlx.errors import RlxError

    begin = time.monotonic()
    with pytest.raises(RlxError, match="no_such_engine"):
        pipeline_runs.train(
            tiny_model, rows, tmp_path / "out", rollout_backend="no_such_engine:create", max_steps=2
        )
    assert time.monotonic() - begin < 60
    assert not any(thread.name == "rollout" for thread in threading.enumerate())
