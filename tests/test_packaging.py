"""What an installed distribution does at start and leaves on disk: whole, damaged, removed.

The slow tests install into virtual environments of their own, which hold nothing but a stand-in for ms-swift.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from runs import arguments
from sandbox import MS_SWIFT, REPOSITORY, Sandbox

from swift_rlx import __version__, _boot


def test_the_pth_file_is_the_text_that_the_package_builds():
    text = (REPOSITORY / "swift_rlx.pth").read_text(encoding="ascii")
    assert text == _boot.PTH
    assert text.startswith("import ")
    assert text.count("\n") == 1
    assert text.endswith("\n")


def test_the_start_file_names_the_function_that_puts_the_same_finder_in_place():
    assert (REPOSITORY / "swift_rlx.start").read_text(encoding="ascii") == _boot.START
    module, name = _boot.START.strip().split(":")
    assert (module, name) == (_boot.__name__, _boot.install.__name__)


def test_the_line_and_the_function_define_the_same_finder(tmp_path):
    code = (
        "import sys, types\n"
        "from swift_rlx import _boot\n"
        "def shape(finder):\n"
        "    code = finder.find_spec.__code__\n"
        "    return sorted(vars(finder)), code.co_names, code.co_consts\n"
        "_boot.install(); one = sys.meta_path.pop(0)\n"
        "exec(_boot.PTH); two = sys.meta_path.pop(0)\n"
        "assert one is not two and shape(one) == shape(two), (shape(one), shape(two))"
    )
    result = Sandbox(tmp_path).run(code)
    assert result.returncode == 0, result.stderr


def _call(*command, cwd=None):
    result = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


class Environment:
    """A virtual environment without pip, filled and emptied by the pip of this interpreter."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        (self.packages,) = (folder / "lib").glob("python*/site-packages")
        self._folder = folder

    def pip(self, *arguments) -> None:
        quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
        _call(sys.executable, "-m", "pip", "--python", self.python, *arguments, *quiet)

    def install(self, wheel: Path, *options: str) -> None:
        self.pip("install", "--no-deps", "--no-index", *options, wheel)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python in it, with no other environment variables than the given ones."""
        command = [str(self.python), *arguments]
        return subprocess.run(
            command, cwd=self._folder, env=variables, capture_output=True, text=True, timeout=240, check=False
        )

    def files(self) -> set[str]:
        return {str(path.relative_to(self._folder)) for path in self._folder.rglob("*")}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A wheel of each kind, by name; the editable one points to the copy of the sources `editable_source`."""
    folder = tmp_path_factory.mktemp("wheels")
    source = folder / "editable_source"
    sdist, tree = folder / "sdist", folder / "tree"
    _call(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", sdist, cwd=REPOSITORY)
    shutil.unpack_archive(next(sdist.iterdir()), tree, filter="data")
    shutil.copytree(next(tree.iterdir()), source)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    _call(*build, folder / "normal", REPOSITORY)
    _call(*build, folder / "sdist_wheel", next(sdist.iterdir()))
    editable = f"import hatchling.build as b; b.build_editable({str(folder / 'editable')!r})"
    _call(sys.executable, "-c", editable, cwd=source)
    kinds = {"wheel": "normal", "wheel from sdist": "sdist_wheel", "editable": "editable"}
    found = {kind: next((folder / name).glob("*.whl")) for kind, name in kinds.items()}
    return {**found, "editable_source": source}


@pytest.fixture
def environment(tmp_path):
    """An empty virtual environment with a stand-in for ms-swift."""
    environment = Environment(tmp_path / "venv")
    Sandbox(environment.packages, MS_SWIFT)
    return environment


STATE = """
import json, sys
state = {"at start": [m for m in sys.modules if m.startswith("swift_rlx")]}
state["finders"] = sum(hasattr(f, "swift_rlx") for f in sys.meta_path)
import swift.version
from swift_rlx._hooks import hooks
state["origin"], state["reason"] = hooks.plugins["swift_rlx"].origin, hooks.why_not_live("swift_rlx")
print(json.dumps(state))
"""

KINDS = ["wheel", "wheel from sdist", "editable"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_install_makes_the_hook_live_and_an_uninstall_leaves_nothing(environment, wheels, kind):
    environment.run("-c", "import swift.arguments, swift.trainers.trainer_factory")  # its own .pyc files
    before = environment.files()
    environment.install(wheels[kind])
    result = environment.run("-c", STATE)
    assert result.stderr == ""
    expected = {"at start": [], "finders": 1, "origin": f"swift-rlx {__version__}", "reason": None}
    assert json.loads(result.stdout) == expected
    environment.run("-m", "compileall", "-q", str(environment.packages / "swift_rlx"))
    environment.pip("uninstall", "--yes", "swift-rlx")
    assert environment.files() == before
    result = environment.run(
        "-c", "import swift.arguments, sys; print(len([*filter(callable, sys.meta_path)]))"
    )
    assert (result.returncode, result.stderr) == (0, "")


IMPORT_SWIFT = "from swift.arguments import RLHFArguments as A; print(A.types)"

# What is damaged, and whether importing ms-swift then reports our plugin by name (else it is silent).
DAMAGE = {
    "package folder gone": (lambda site: shutil.rmtree(site / "swift_rlx"), False),
    "__init__ does not parse": (lambda site: (site / "swift_rlx/__init__.py").write_text("def (:\n"), False),
    "_hooks does not parse": (lambda site: (site / "swift_rlx/_hooks.py").write_text("def (:\n"), False),
    "_plugin gone": (lambda site: (site / "swift_rlx/_plugin.py").unlink(), True),
    "adapter does not parse": (
        lambda site: (site / "swift_rlx/integration/arguments.py").write_text("def (:\n"),
        True,
    ),
    "metadata gone": (lambda site: shutil.rmtree(*site.glob("swift_rlx-*.dist-info")), True),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_install_stops_neither_python_nor_ms_swift(environment, wheels, kind):
    damage, is_reported = DAMAGE[kind]
    environment.install(wheels["wheel"], "--no-compile")
    damage(environment.packages)
    bare = environment.run("-c", "pass")
    assert (bare.returncode, bare.stdout, bare.stderr) == (0, "", "")
    result = environment.run("-c", IMPORT_SWIFT)
    assert (result.returncode, result.stdout) == (0, "('dpo', 'grpo')\n")
    if is_reported:  # the metadata alone is no loss: our plugin runs, and misses the real ms-swift
        assert result.stderr.startswith("swift plugin 'swift_rlx' is left out, ms-swift goes on: ")
        assert result.stderr.count("is left out") == 1
    else:
        assert result.stderr == ""


@pytest.mark.slow
def test_an_editable_install_whose_sources_are_gone_is_silent(environment, wheels, tmp_path):
    environment.install(wheels["editable"])
    pth = environment.packages / "_swift_rlx.pth"
    assert pth.read_text(encoding="utf-8").strip() == str(wheels["editable_source"])
    pth.write_text(str(tmp_path / "gone"), encoding="utf-8")
    result = environment.run("-c", IMPORT_SWIFT)
    assert (result.returncode, result.stdout, result.stderr) == (0, "('dpo', 'grpo')\n", "")


@pytest.mark.slow
def test_an_install_into_a_target_folder_works_through_python_m(environment, wheels, tmp_path):
    target = str(tmp_path / "target")
    environment.install(wheels["wheel"], "--target", target)
    look = "import swift.version, sys; print('swift_rlx._hooks' in sys.modules)"
    alone = environment.run("-c", look, PYTHONPATH=target)
    assert (alone.stdout, alone.stderr) == ("False\n", "")
    show = "from swift_rlx._hooks import hooks\nrlhf_main = lambda argv: print(argv, hooks.plugins)\n"
    cli = {
        "swift/cli/main.py": "get_torchrun_args = lambda: None\nparse_yaml_args = lambda argv: None\n",
        "swift/cli/utils.py": "try_use_single_device_mode = lambda: None\n",
        "swift/pipelines.py": show,
    }
    Sandbox(environment.packages, cli)
    result = environment.run("-m", "swift_rlx", "rlhf", "--seed", "1", PYTHONPATH=target)
    assert result.stderr == ""
    assert result.stdout.startswith("['--seed', '1'] {'swift_rlx': Plugin(")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_train_from_a_target_folder_with_the_real_ms_swift(
    wheels, tmp_path, tiny_model, write_rows
):
    environment = Environment(tmp_path / "venv")
    installed = sysconfig.get_path("purelib")  # .pth files in a folder that a .pth file adds are not read
    (environment.packages / "test_environment.pth").write_text(installed, encoding="utf-8")
    target = tmp_path / "target"
    environment.install(wheels["wheel"], "--target", str(target))
    options = arguments(tiny_model, write_rows(), tmp_path / "output", rlhf_type="rloo", ddp_backend="gloo")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**options, "reward_funcs": ["repetition"]}), encoding="utf-8")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    variables |= {"PYTHONPATH": str(target), "NPROC_PER_NODE": "2", "MASTER_PORT": port}
    result = environment.run("-m", "swift_rlx", "rlhf", str(config), **variables)
    assert result.returncode == 0, result.stderr[-3000:]
    saved = json.loads((tmp_path / "output" / "args.json").read_text(encoding="utf-8"))
    assert (saved["rlhf_type"], saved["global_world_size"]) == ("rloo", 2)
