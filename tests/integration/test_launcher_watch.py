"""A training that `swift rlhf` started ends with it; one that anything else started goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from swift_rlx.integration import launcher_watch
from swift_rlx.integration.launcher_watch import is_launcher

STARTS_WHAT_FOLLOWS = "import subprocess, sys; subprocess.run(sys.argv[2:])"
TRAINING = """
import os, sys, threading
from swift_rlx.integration.launcher_watch import end_with_launcher
print(os.getpid(), end_with_launcher(), end_with_launcher(), threading.active_count(), flush=True)
for line in sys.stdin:
    print(line, end="", flush=True)
"""
TORCHRUN = [sys.executable, "-c", STARTS_WHAT_FOLLOWS, "torch.distributed.run"]
WITHIN_S = 10.0


@contextmanager
def started(
    folder: Path, name: str, command: str, between: list[str]
) -> Iterator[tuple[subprocess.Popen[str], psutil.Process, list[str]]]:
    """A launcher, the training below it, and what the training said."""
    script = folder / name
    script.write_text(STARTS_WHAT_FOLLOWS)
    launcher = subprocess.Popen(
        [sys.executable, str(script), command, *between, sys.executable, "-c", TRAINING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert launcher.stdout is not None
        number, *said = launcher.stdout.readline().split()
        yield launcher, psutil.Process(int(number)), said
    finally:
        with suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.communicate()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("between", [[], TORCHRUN], ids=["alone", "torchrun"])
def test_a_training_ends_with_the_command_that_started_it(
    tmp_path: Path, between: list[str], how: signal.Signals
) -> None:
    with started(tmp_path, "swift", "rlhf", between) as (launcher, training, said):
        assert said == ["True", "True", "2"]
        launcher.send_signal(how)
        launcher.wait(WITHIN_S)
        training.wait(WITHIN_S)


@pytest.mark.parametrize(("name", "command"), [("swift", "web-ui"), ("train.sh", "rlhf")])
def test_a_training_that_another_program_started_is_left_alone(
    tmp_path: Path, name: str, command: str
) -> None:
    with started(tmp_path, name, command, []) as (launcher, training, said):
        assert said == ["False", "False", "1"]
        launcher.kill()
        launcher.wait(WITHIN_S)
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        launcher.stdin.write("still there\n")
        launcher.stdin.flush()
        assert launcher.stdout.readline() == "still there\n"
        training.kill()


def test_a_command_that_ended_before_the_training_was_ready_ends_it(tmp_path: Path) -> None:
    slow = TRAINING.replace(
        "print(", "find_launcher()\nprint('looked', flush=True)\nsys.stdin.readline()\nprint("
    )
    slow = slow.replace("import end_with_launcher", "import end_with_launcher, find_launcher")
    script = tmp_path / "swift"
    script.write_text(STARTS_WHAT_FOLLOWS)
    words = [
        sys.executable,
        str(script),
        "rlhf",
        sys.executable,
        "-c",
        f"import os\nprint(os.getpid())\n{slow}",
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        training = psutil.Process(int(launcher.stdout.readline()))
        assert launcher.stdout.readline() == "looked\n"
        launcher.kill()
        launcher.wait(WITHIN_S)
        launcher.stdin.write("go on\n")
        launcher.stdin.flush()
        training.wait(WITHIN_S)


def test_without_pidfds_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr(launcher_watch, "_words", lambda process: ["swift", "rlhf"])
    monkeypatch.setattr(launcher_watch, "_found", {})
    assert launcher_watch.end_with_launcher() is False


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("/env/bin/python /env/bin/swift rlhf --model a", True),
        ("python -m swift.cli.main rlhf run.yaml", True),
        ("python /env/lib/swift/cli/main.py rlhf", True),
        ("python /env/bin/swift sft --model rlhf", False),
        ("python -m swift_rlx rlhf", False),
        ("bash /home/me/swift/train.sh rlhf", False),
        ("swift", False),
        ("", False),
    ],
)
def test_the_command_is_known_by_its_words(line: str, is_one: bool) -> None:
    assert is_launcher(line.split()) is is_one
