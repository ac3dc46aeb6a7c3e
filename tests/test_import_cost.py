"""What is imported when, in fresh interpreters: the package must cost other programs next to nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sandbox import MS_SWIFT, REPOSITORY, Sandbox

from swift_rlx import _boot

MS_SWIFT_FAMILY = {"swift", "transformers", "trl", "peft", "accelerate", "datasets", "pyarrow", "modelscope"}
HEAVY = {"torch", "numpy", "pandas", *MS_SWIFT_FAMILY}


def _imported(sandbox: Sandbox, code: str) -> set[str]:
    """The modules that `code` imports in a bare interpreter."""
    show = "import sys; before = set(sys.modules)\n{}\nprint(*set(sys.modules) - before)"
    result = sandbox.run(show.format(code))
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_the_package_imports_nothing_but_itself(tmp_path):
    assert _imported(Sandbox(tmp_path), "import swift_rlx") == {"swift_rlx"}


def test_a_start_by_the_start_file_imports_the_package_and_its_finder_only(tmp_path):
    code = "import swift_rlx._boot\nswift_rlx._boot.install()"
    assert _imported(Sandbox(tmp_path), code) == {"swift_rlx", "swift_rlx._boot"}


def test_a_start_by_the_pth_file_imports_nothing(tmp_path):
    sandbox = Sandbox(tmp_path, {"other_program.py": "import swiftly\n", "swiftly.py": ""})
    assert _imported(sandbox, f"{_boot.PTH}import other_program") == {"other_program", "swiftly"}


def test_the_first_module_of_ms_swift_brings_the_hooks_without_anything_heavy(tmp_path):
    imported = _imported(Sandbox(tmp_path, MS_SWIFT), f"{_boot.PTH}import swift.version")
    ours = {name for name in imported if name.startswith("swift_rlx")}
    modules = {"swift_rlx", "swift_rlx._boot", "swift_rlx._hooks", "swift_rlx._plugin", "swift_rlx.errors"}
    assert ours == modules
    assert not imported & (HEAVY - {"swift"})


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        (["registry", "cli.main"], HEAVY),
        (["algorithms", "rewards", "testing"], MS_SWIFT_FAMILY),
    ],
)
def test_the_lower_layers_are_imported_without_ms_swift(modules, unwanted):
    code = "".join(f"import swift_rlx.{module}\n" for module in modules) + "import sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert not set(result.stdout.split()) & unwanted
