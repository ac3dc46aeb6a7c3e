"""Whatever ends the trainer, none of its processes and nothing in shared memory is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path

import pytest
from worker_runs import end_of

from swift_rlx.cluster import guardian as guarding

SUPPORT = Path(__file__).resolve().parents[1] / "support"
SHARED_MEMORY = Path("/dev/shm")


class Run:
    """The program `run_with_workers.py`, and what it said about itself."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "run_with_workers.py"), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment},
        )
        self.facts: dict[str, list[str]] = {"guardians": []}
        batches = 0
        while batches < 3:
            line = self.process.stdout.readline()
            assert line, "it ended by itself"
            name, *values = line.split()
            self.facts[name] = values
            batches += name == "batch"
        self.facts["guardians"] = children_with("guardian.py", self.process.pid)
        for log in folder.glob("*.log"):
            for line in log.read_text().splitlines():
                name, *values = line.split()
                if name in ("segments", "grandchildren"):
                    self.facts[name] = self.facts.get(name, []) + values

    def left(self) -> list[str]:
        """What of it is still there, after at most 10 s."""
        names = ("workers", "grandchildren", "guardians")
        processes = [int(one) for name in names for one in self.facts[name]]
        files = [SHARED_MEMORY / name for name in self.facts["segments"]] + [Path(*self.facts["directory"])]
        deadline = time.monotonic() + 10
        while True:
            left = [f"process {one}" for one in processes if end_of(one) not in ("", "Z")]
            left += [str(file) for file in files if file.exists()]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)

    def clean(self) -> None:
        """End all of it, should the test have failed."""
        pids = [self.process.pid, *(int(one) for name in ("loader", "workers") for one in self.facts[name])]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def children_with(text: str, parent: int) -> list[str]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == parent and text in Path("/proc", entry, "cmdline").read_text():
                found.append(entry)
    return found


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    made.clean()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda one: one.name)
def test_nothing_is_left_when_the_trainer_ends_by(run, number):
    facts = run.facts
    assert [len(facts[name]) for name in ("workers", "grandchildren", "segments")] == [2, 4, 4]
    assert len(facts["guardians"]) == 1
    assert all((SHARED_MEMORY / name).exists() for name in facts["segments"])
    assert Path(*facts["directory"]).is_dir()
    run.process.send_signal(number)
    run.process.wait(60)
    assert run.left() == []
    assert end_of(int(*facts["loader"])) == "S"  # it held copies of all pipes the whole time


@pytest.mark.slow
def test_workers_end_themselves_where_the_guardian_is_gone_as_well(run):
    os.kill(int(*run.facts["guardians"]), signal.SIGKILL)
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + 10
    while any(end_of(int(one)) not in ("", "Z") for one in run.facts["workers"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for name in run.facts["segments"]:
        (SHARED_MEMORY / name).unlink(missing_ok=True)
    for one in run.facts["grandchildren"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(one), signal.SIGKILL)
    guarding.shutil.rmtree(*run.facts["directory"])


def test_a_group_ends_with_its_children_and_what_they_alone_had_in_shared_memory():
    code = (
        "import os, sys, subprocess, time\n"
        "from multiprocessing import resource_tracker, shared_memory\n"
        "resource_tracker.register = lambda *a: None\n"  # nobody else cleans up
        "kept = [shared_memory.SharedMemory(create=True, size=4096), shared_memory.SharedMemory(sys.argv[1])]\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, kept[0].name, flush=True)\n"
        "time.sleep(600)\n"
    )
    shared = shared_memory.SharedMemory(create=True, size=4096)  # mapped by us, too
    try:
        leader = subprocess.Popen(
            [sys.executable, "-S", "-c", code, shared.name],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        child, own = leader.stdout.readline().split()
        assert guarding.members(leader.pid) == {leader.pid, int(child)}
        assert (SHARED_MEMORY / own).exists()
        guarding.end_group(leader.pid)
        assert leader.wait(5) == -signal.SIGKILL
        assert end_of(int(child)) in ("", "Z")
        assert not (SHARED_MEMORY / own).exists()
        assert (SHARED_MEMORY / shared.name).exists()
    finally:
        shared.close()
        shared.unlink()


def test_a_guardian_that_was_killed_is_replaced_by_one_that_knows_as_much(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from swift_rlx.cluster.guardian import guardian\n"
        "one = guardian()\n"
        "for name in 'ab':\n"
        "    Path(sys.argv[1], name).mkdir()\n"
        "    one.add_directory(Path(sys.argv[1], name))\n"
        "    os.kill(one.pid, signal.SIGKILL)\n"
        "    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)\n"
        "Path(sys.argv[1], 'c').mkdir()\n"
        "one.add_directory(Path(sys.argv[1], 'c'))\n"
        "one.forget_directory(Path(sys.argv[1], 'b'))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    deadline = time.monotonic() + 5
    while os.listdir(tmp_path) != ["b"]:
        assert time.monotonic() < deadline, os.listdir(tmp_path)
        time.sleep(0.02)
