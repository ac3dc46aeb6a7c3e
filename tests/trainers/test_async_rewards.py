"""Real runs whose rewards fail, hang, or cannot be scored beside the training."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipeline_runs
import psutil
import pytest
import runs
from descendants import left_after
from pipeline_runs import PickedUp

from swift_rlx.errors import RewardError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PROMPTS = 12
LEFT_AFTER_S = 10.0
Rows = Callable[..., Path]


@pytest.fixture
def rows(write_rows: Rows) -> Path:
    return write_rows(
        [
            {"messages": [{"role": "user", "content": f"What is {n} + 1?"}], "solution": str(n + 1), "row": n}
            for n in range(PROMPTS)
        ]
    )


def logged(output: Path, name: str) -> list[float]:
    return [float(line[name]) for line in runs.log_lines(output) if name in line]


def test_the_command_of_the_readme_trains_with_accuracy(tiny_model: Path, rows: Path, tmp_path: Path) -> None:
    """math-verify sets an alarm, which works in the main thread of a process of its own."""
    options = pipeline_runs.ASYNC | {"rlhf_type": "rloo", "reward_funcs": ["accuracy"], "max_steps": 2}
    done = runs.swift(runs.arguments(tiny_model, rows, tmp_path / "out", **options))

    assert done.returncode == 0, done.stderr[-3000:]
    assert logged(tmp_path / "out", "reward/accuracy/none") == [0.0, 0.0], "every answer was judged"
    assert logged(tmp_path / "out", "reward/accuracy/failures") == [0.0, 0.0]


def test_rewards_that_set_an_alarm_score_beside_the_training(
    tiny_model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picked_up = PickedUp(monkeypatch)
    names = ["with_alarm", "with_uncaught_alarm"]
    trainer = pipeline_runs.train(tiny_model, rows, tmp_path / "out", reward_funcs=names, max_steps=4)

    assert picked_up.batches[-1].late == []
    for name in names:
        means = logged(tmp_path / "out", f"reward/{name}/mean")
        assert means == [1.0] * 4, "refused alarms must not count as answers"
    assert trainer.state.global_step == 4


def test_an_alarm_in_a_reward_that_only_this_process_has_moves_it_to_the_main_thread(
    tiny_model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_alarm(completion: str) -> float:
        signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        return 1.0

    picked_up = PickedUp(monkeypatch)
    pipeline_runs.train(tiny_model, rows, tmp_path / "out", reward_funcs=[with_alarm], max_steps=4)

    assert picked_up.batches[-1].late == [0]
    assert logged(tmp_path / "out", "reward/with_alarm/mean") == [1.0] * 4


def test_a_reward_of_whole_batches_scores_each_of_them_once_beside_the_training(
    tiny_model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHES", str(tmp_path / "batches"))
    picked_up = PickedUp(monkeypatch)
    pipeline_runs.train(
        tiny_model, rows, tmp_path / "out", reward_funcs=["vowels", "ranks_batch"], max_steps=6
    )

    calls = [line.split() for line in (tmp_path / "batches").read_text(encoding="utf-8").splitlines()]
    assert str(os.getpid()) not in {pid for pid, _ in calls}, "not in the training's process"
    assert {count for _, count in calls} == {"8"}, "all answers of a batch in a call"
    assert len(calls) >= 6
    for batch in picked_up.batches:
        assert (batch.late, batch.versions["ranks_batch"]) == ([], "5")
        assert sorted(row.rewards[1] for row in batch.rows) == [at / 8 for at in range(8)]
        by_vowels = sorted(batch.rows, key=lambda row: row.rewards[1])
        assert [row.rewards[0] for row in by_vowels] == sorted(row.rewards[0] for row in batch.rows)


def test_a_failing_reward_ends_the_run_with_its_own_words(
    tiny_model: Path, rows: Path, tmp_path: Path
) -> None:
    with pytest.raises(RewardError, match="no verdict today"):
        pipeline_runs.train(tiny_model, rows, tmp_path / "out", reward_funcs=["broken"], max_steps=4)


def test_rows_that_fail_are_counted_in_the_log_of_the_training_that_they_are_of(
    tiny_model: Path, rows: Path, write_rows: Rows, tmp_path: Path
) -> None:
    held_out = write_rows(
        [{"messages": [{"role": "user", "content": "say"}], "row": 2 * n} for n in range(4)], "held_out.jsonl"
    )
    pipeline_runs.train(
        tiny_model, rows, tmp_path / "out", max_steps=6,
        reward_funcs=["fails_on_odd"], reward_on_error="value:0",
        val_dataset=[str(held_out)], eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=4,
    )  # fmt: skip

    failures = logged(tmp_path / "out", "reward/fails_on_odd/failures")
    assert sum(failures) == PROMPTS / 2 * 4, "the answers of all odd prompts of the epoch"
    evaluated = logged(tmp_path / "out", "eval_reward/fails_on_odd/failures")
    assert evaluated == [0.0] * 3, "no row of the evaluation fails"


@pytest.mark.parametrize("how", ["Ctrl-C", "another reward fails"])
def test_a_reward_that_hangs_keeps_no_process(
    how: str, tiny_model: Path, rows: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    hang, fail, output = tmp_path / "hang", tmp_path / "fail", tmp_path / "out"
    options: dict[str, Any] = {
        "rlhf_type": "rloo",
        "external_plugins": [str(pipeline_runs.PLUGIN)],
        **pipeline_runs.ASYNC,
        "reward_funcs": ["hangs", "fails_then"],
        "max_steps": 100_000,
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            runs.command(runs.arguments(tiny_model, rows, output, **options)),
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"MASTER_PORT": runs.free_port(), "HANG": str(hang), "FAIL": str(fail)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    request.addfinalizer(lambda: end(process))
    wait_for_steps(output, 2, process)
    family = psutil.Process(process.pid).children(recursive=True)
    hang.touch()
    stalled(output)
    if how == "Ctrl-C":  # a terminal sends it to the whole foreground group
        os.killpg(process.pid, signal.SIGINT)
    else:
        fail.touch()
    assert not left_after(family, LEFT_AFTER_S)
    assert process.wait(10) != 0
    if how != "Ctrl-C":
        assert "no verdict today" in (tmp_path / "log").read_text(encoding="utf-8", errors="replace")


def wait_for_steps(output: Path, steps: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        assert process.poll() is None, "the run ended by itself"
        if (output / "logging.jsonl").exists() and len(runs.log_lines(output)) >= steps:
            return
        time.sleep(0.2)
    raise AssertionError(f"no {steps} steps within 150 s")


def stalled(output: Path) -> None:
    """Return once no step was logged for three seconds: what was scored before has trained."""
    steps, since = 0, time.monotonic()
    while time.monotonic() - since < 3:
        if (now := len(runs.log_lines(output))) != steps:
            steps, since = now, time.monotonic()
        time.sleep(0.2)


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
