"""However the command ends, no process and no shared memory is left; Ctrl-C and SIGTERM say how to go on."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pipeline_runs
import psutil
import pytest
import runs
from descendants import descendants, left_after

from swift_rlx.integration.checkpoint_files import missing_part

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
LEFT_AFTER_S = 10.0


def wait_for_steps(output: Path, steps: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline:
        assert process.poll() is None, "the run ended by itself"
        log = output / "logging.jsonl"
        if log.exists() and len(runs.log_lines(output)) >= steps:
            return
        time.sleep(0.2)
    raise AssertionError(f"no {steps} steps within 150 s")


def shared_memory() -> set[str]:
    return {entry.name for entry in Path("/dev/shm").iterdir() if entry.stat().st_uid == os.getuid()}


def end(group: int) -> None:
    """What a failed test left running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left(
    how: signal.Signals,
    tiny_model: Path,
    write_rows: Callable[..., Path],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    before, output = shared_memory(), tmp_path / "out"
    options = {
        "rlhf_type": "rloo",
        "external_plugins": [str(pipeline_runs.PLUGIN)],
        **pipeline_runs.ASYNC,
        "rollout_workers": 2,
        "max_steps": 100_000,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    command = runs.command(runs.arguments(tiny_model, write_rows(64), output, **options))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"MASTER_PORT": runs.free_port()},
            # A shell that started the tests in the background may have made them deaf to Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    request.addfinalizer(lambda: end(process.pid))
    wait_for_steps(output, 3, process)
    family = psutil.Process(process.pid).children(recursive=True)
    trainer = descendants(process.pid, "rlhf.py")[0]
    mine = [name for name in shared_memory() - before if f"-{trainer.pid}-" in name]
    assert mine, "weights go through shared memory"
    if how is signal.SIGINT:  # a terminal sends it to the whole foreground group
        os.killpg(process.pid, how)
    elif how is signal.SIGTERM:  # what sent it knows the command alone, which passes nothing on
        process.send_signal(how)
    else:
        trainer.send_signal(how)
    assert not left_after(family, LEFT_AFTER_S)
    assert not [name for name in shared_memory() if name in mine]
    process.wait(10)
    said = (tmp_path / "log").read_text(encoding="utf-8")
    assert "ConnectionResetError" not in said
    if how is not signal.SIGKILL:
        assert_tells_how_to_go_on(said, "Ctrl-C" if how is signal.SIGINT else "SIGTERM")


def assert_tells_how_to_go_on(said: str, stopped_by: str) -> None:
    found = re.findall(
        rf"swift-rlx: stopped by {stopped_by} after step \d+; to go on, give the same command with"
        r" --resume_from_checkpoint (\S+), the last complete one",
        said,
    )
    assert len(found) == 1
    assert missing_part(found[0]) is None
