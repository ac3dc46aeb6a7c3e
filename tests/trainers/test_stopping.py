"""What a trainer says when it is stopped from outside."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_stubs import stub

from swift_rlx.errors import SchedulingError
from swift_rlx.trainers import monitoring, stopping
from swift_rlx.trainers.monitoring import MonitoringMixin
from swift_rlx.trainers.stopping import StoppingMixin


class Trainer(StoppingMixin, MonitoringMixin):
    """In the middle of a run on the pipeline."""

    def __init__(self, output: Path, save_strategy: str = "steps") -> None:
        self.args = SimpleNamespace(output_dir=str(output), save_strategy=save_strategy, save_steps=50)
        self.state = SimpleNamespace(global_step=7)
        self.monitor = SimpleNamespace(summary=lambda counters: f"rollout: {counters}\ntokens: none")
        self.pipeline: Any = SimpleNamespace(thread=SimpleNamespace(statistics=lambda: "7 steps"))
        self._telling, self._told = threading.Lock(), None


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    for module in (stopping, monitoring):
        monkeypatch.setattr(module, "logger", SimpleNamespace(info=lines.append))
    return lines


def test_it_names_the_last_complete_checkpoint_and_sums_up_once(tmp_path: Path, said: list[str]) -> None:
    stub(tmp_path / "checkpoint-6")
    stub(tmp_path / "checkpoint-7", ("trainer_state.json",))
    trainer = Trainer(tmp_path)
    trainer.say_how_to_go_on("Ctrl-C")
    trainer.tell_summary()
    assert said == [
        "swift-rlx: stopped by Ctrl-C after step 7; to go on, give the same command with --resume_from_checkpoint"
        f" {tmp_path}/checkpoint-6, the last complete one",
        "rollout: 7 steps",
        "tokens: none",
    ]


@pytest.mark.parametrize(
    ("strategy", "more"), [("steps", " (--save_steps 50 says how often one is saved)"), ("no", "")]
)
def test_where_there_is_none_it_says_so(strategy: str, more: str, tmp_path: Path, said: list[str]) -> None:
    trainer = Trainer(tmp_path, strategy)
    trainer.monitor = trainer.pipeline = None  # a run without the pipeline, which has nothing to sum up
    trainer.say_how_to_go_on("SIGTERM")
    assert said == [
        f"swift-rlx: stopped by SIGTERM after step 7; there is no complete checkpoint in {tmp_path}, so that the run"
        f" can only begin anew{more}"
    ]


def test_a_pipeline_that_ends_at_this_moment_leaves_the_summary_to_the_end(
    tmp_path: Path, said: list[str]
) -> None:
    def closed() -> None:
        raise SchedulingError("the thread is closed")

    trainer = Trainer(tmp_path)
    trainer.pipeline = SimpleNamespace(thread=SimpleNamespace(statistics=closed))
    trainer.say_how_to_go_on("Ctrl-C")
    assert len(said) == 1
    trainer.pipeline.thread.statistics = lambda: "7 steps"
    trainer.tell_summary()
    assert said[1:] == ["rollout: 7 steps", "tokens: none"]
