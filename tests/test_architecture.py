"""Rules about the code's shape, checked on the syntax tree: layers, lengths, file names, forbidden calls.

A part of the package (a sub-package or a top-level module) imports from itself and from parts in a lower row;
parts in one and the same set of `TOGETHER` may import each other. Imports inside functions count too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import swift_rlx

REPOSITORY = Path(__file__).resolve().parents[1]

MAX_FILE_LINES = 400  # the aim is 300
MAX_FUNCTION_LINES = 60  # the aim is 40

BOOTSTRAP = {"__init__", "__main__", "_boot", "_hooks", "_plugin"}
ROWS = {
    **dict.fromkeys(["errors", "registry", "types", "clock", *BOOTSTRAP], 0),
    **dict.fromkeys(["algorithms", "rewards", "backends", "monitors", "store"], 1),
    **dict.fromkeys(["testing", "scheduler", "cluster"], 2),
    "candidates": 2.5,  # runs the scheduler, and writes what it makes into a store
    "simulation": 2.5,  # runs the scheduler on the fakes of testing
    "reward_service": 2.5,  # guards its workers as the cluster does, and asks as remote backends do
    **dict.fromkeys(["trainers", "integration"], 3),
    "cli": 4,
}
TOGETHER = [{"errors", "registry", *BOOTSTRAP}, {"trainers", "integration"}]

# Packages from outside that a part may import besides the standard library. Parts that are not listed may
# import what they like, except for the family of ms-swift.
OUTSIDE: dict[str, set[str]] = {
    **{part: set() for part in ["errors", "registry", *BOOTSTRAP]},
    "algorithms": {"torch"},
    "types": {"numpy"},
    "clock": set(),
    **{part: {"numpy"} for part in ["backends", "scheduler", "simulation"]},
    "cluster": {"numpy", "msgspec"},
    "monitors": {"numpy", "msgspec"},
    "store": {"numpy", "pyarrow", "fsspec"},
    "candidates": {"numpy", "pyarrow"},
    "reward_service": {"msgspec"},
    "__main__": {"swift"},  # it stands in for ms-swift's own `swift.cli.rlhf`
}
ENGINE_FILES: dict[str, set[str]] = {  # imported where their kind of thing is used, and nowhere else
    "swift_rlx/algorithms/offline/": {"torch", "scipy", "rjieba"},
    "swift_rlx/backends/remote_": {"numpy", "msgspec", "aiohttp"},
    "swift_rlx/backends/transformers_": {"numpy", "torch", "transformers", "peft", "safetensors"},
    "swift_rlx/backends/vllm_": {"numpy", "psutil", "torch", "safetensors", "vllm"},
    "swift_rlx/reward_service/app.py": {"fastapi", "msgspec"},
    "swift_rlx/reward_service/serving.py": {"uvicorn"},
    "swift_rlx/reward_service/metrics.py": {"prometheus_client"},
}
MS_SWIFT = {"swift", "trl", "transformers", "peft", "accelerate", "datasets"}
KNOWS_MS_SWIFT = {"trainers", "integration", "__main__"}

# Files at a border to foreign code, where any error is caught and goes on as data.
CATCHES_EVERYTHING = {
    "swift_rlx/_hooks.py": "a plugin's fault must not stop ms-swift",
    "swift_rlx/registry.py": "a half-removed distribution must not hide the others",
    "swift_rlx/rewards/outcome.py": "a reward function raises what it likes",
    "swift_rlx/rewards/execution.py": "what ends a call is raised where it is awaited",
    "swift_rlx/scheduler/requests.py": "a rollout backend raises what it likes",
    "swift_rlx/backends/transformers_decoder.py": "a model raises what it likes",
    "swift_rlx/backends/transformers_engine.py": "a model and its files raise what they like",
    "swift_rlx/cluster/host.py": "an engine raises what it likes",
    "swift_rlx/cluster/reward_host.py": "the module of a reward raises what it likes",
    "swift_rlx/scheduler/loop_thread.py": "what ends the thread is raised in the caller's",
    "swift_rlx/testing/engine_suite.py": "an engine under test raises what it likes",
    "swift_rlx/testing/reward_suite.py": "a reward under test raises what it likes",
    "swift_rlx/reward_service/worker_program.py": "a reward that is built raises what it likes",
    "swift_rlx/cli/probe.py": "a package that fails to import is a line of the doctor's report",
}
BANNED_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "core", "manager"}
PICKLING = {"pickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
PICKLES = {"swift_rlx/testing/reward_suite.py": "shows that a worker process can be sent the reward"}

Finding = tuple[str, int, str]  # rule, line, text


def violations(path: str, source: str) -> list[str]:
    """What is wrong with one file, as `rule: path:line: text`; `path` is relative to the repository."""
    tree = ast.parse(source)
    found = [*_sizes(tree, source), *_names(path)]
    if path.startswith("swift_rlx/"):
        found += [*_layers(path, tree), *_broad_catches(path, tree), *_calls(path, tree)]
    return [f"{rule}: {path}:{line}: {text}" for rule, line, text in found]


def _sizes(tree: ast.Module, source: str) -> Iterator[Finding]:
    if (lines := source.count("\n")) > MAX_FILE_LINES:
        yield "file length", 1, f"{lines} lines"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield "function length", node.lineno, f"{node.name} has {length} lines"


def _names(path: str) -> Iterator[Finding]:
    banned = BANNED_NAMES & {Path(part).stem for part in Path(path).parts}
    if banned:
        yield "file name", 1, f"{', '.join(banned)}: name it after the thing in it"


def _imports(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything that is imported, each name of a from-import included."""
    package = list(Path(path).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            yield from ((node.lineno, a.value) for a in node.args[:1] if isinstance(a, ast.Constant))


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).split(".")[-1]


def _part(dotted: str) -> str:
    """The part that holds a dotted name of swift_rlx; a public name counts for where it is defined."""
    name = [*dotted.split("."), "__init__"][1]
    if name in swift_rlx._LAZY:
        return swift_rlx._LAZY[name].split(".")[1]
    exists = any((REPOSITORY / "swift_rlx" / found).exists() for found in (name, f"{name}.py"))
    return name if name in ROWS or exists else "__init__"  # `from swift_rlx import __version__`


def _layers(path: str, tree: ast.Module) -> Iterator[Finding]:
    part = Path(path).parts[1].removesuffix(".py")
    if part not in ROWS:
        yield "layers", 1, f"'{part}' has no row in the table of layers"
        return
    for line, name in _imports(path, tree):
        top = name.split(".")[0]
        if top == "swift_rlx":
            other = _part(name)
            together = any({part, other} <= group for group in TOGETHER)
            if part != other and not together and ROWS.get(other, 99) >= ROWS[part]:
                yield "layers", line, f"{part} imports {name}"
        elif top in _engine_packages(path):
            continue
        elif top in MS_SWIFT and part not in KNOWS_MS_SWIFT:
            yield "layers", line, f"{part} imports {name}: only trainers and integration know ms-swift"
        elif top not in sys.stdlib_module_names and top not in OUTSIDE.get(part, {top}):
            yield "layers", line, f"{part} imports {name}"


def _engine_packages(path: str) -> set[str]:
    return next((found for start, found in ENGINE_FILES.items() if path.startswith(start)), set())


def _broad_catches(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Handlers of every error that end without raising, outside the files that are meant to have them."""
    if path in CATCHES_EVERYTHING:
        return
    everything = {"Exception", "BaseException"}
    for node in ast.walk(tree):
        caught: set[str] = set()
        if isinstance(node, ast.ExceptHandler) and not isinstance(node.body[-1], ast.Raise):
            names = ast.walk(node.type) if node.type else [ast.Name("BaseException")]
            caught = {name.id for name in names if isinstance(name, ast.Name)}
        elif isinstance(node, ast.Call) and _called(node) == "suppress":
            caught = {ast.unparse(argument) for argument in node.args}
        if caught & everything:
            yield "broad catch", node.lineno, "catches every error"


def _calls(path: str, tree: ast.Module) -> Iterator[Finding]:
    for line, name in _imports(path, tree):
        if (name.split(".")[0] in PICKLING and path not in PICKLES) or name in ("torch.load", "torch.save"):
            yield "pickle", line, f"imports {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.save"):
            yield "pickle", node.lineno, ast.unparse(node)
        if isinstance(node, ast.keyword) and ast.unparse(node) == "allow_pickle=True":
            yield "pickle", node.value.lineno, "allow_pickle"
        if isinstance(node, ast.Name) and node.id == "print" and not path.startswith("swift_rlx/cli/"):
            yield "print", node.lineno, "print outside the commands"


def _files() -> dict[str, Path]:
    """Python files of this repository, by their path inside it."""
    folders = ("swift_rlx", "plugins", "examples", "tests", ".ci")
    files = [file for folder in folders for file in sorted((REPOSITORY / folder).rglob("*.py"))]
    return {file.relative_to(REPOSITORY).as_posix(): file for file in files}


def test_every_file_follows_the_rules():
    found = []
    for path, file in _files().items():
        found += violations(path, file.read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


def test_the_rules_see_the_whole_package():
    assert {"swift_rlx/__init__.py", "swift_rlx/algorithms/kl.py", "tests/conftest.py"} <= set(_files())


@pytest.mark.parametrize("path", CATCHES_EVERYTHING)
def test_a_file_that_may_catch_everything_makes_use_of_it(path):
    tree = ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))
    assert list(_broad_catches("", tree)), f"{path} needs no place in the list"


LONG_FUNCTION = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
CATCH = "try:\n    f()\nexcept{}:\n    x = 1\n"

PLANTED = [
    ("layers", "swift_rlx/algorithms/x.py", "def f():\n    from swift_rlx.trainers import rloo\n"),
    ("layers", "swift_rlx/algorithms/x.py", "from ..rewards import spec\n"),
    ("layers", "swift_rlx/algorithms/x.py", "from .. import integration\n"),
    ("layers", "swift_rlx/algorithms/x.py", "from swift_rlx import RLOOTrainer\n"),
    ("layers", "swift_rlx/algorithms/x.py", "importlib.import_module('swift_rlx.cli.main')\n"),
    ("layers", "swift_rlx/algorithms/x.py", "import numpy\n"),
    ("layers", "swift_rlx/scheduler/x.py", "import torch\n"),
    ("layers", "swift_rlx/scheduler/x.py", "from swift_rlx.testing import run_virtual\n"),
    ("layers", "swift_rlx/backends/x.py", "from swift_rlx.scheduler import RolloutConfig\n"),
    ("layers", "swift_rlx/backends/x.py", "import transformers\n"),
    ("layers", "swift_rlx/backends/transformers_x.py", "import trl\n"),
    ("layers", "swift_rlx/types.py", "from swift_rlx.backends import Backend\n"),
    ("layers", "swift_rlx/rewards/x.py", "if True:\n    import transformers.utils\n"),
    ("layers", "swift_rlx/cli/x.py", "from swift.arguments import RLHFArguments\n"),
    ("layers", "swift_rlx/errors.py", "import torch\n"),
    ("layers", "swift_rlx/_hooks.py", "from swift_rlx.rewards import spec\n"),
    ("layers", "swift_rlx/trainers/x.py", "from swift_rlx.cli import main\n"),
    ("layers", "swift_rlx/novelty/x.py", "x = 1\n"),
    ("function length", "swift_rlx/trainers/x.py", LONG_FUNCTION),
    ("file length", "tests/x.py", "x = 1\n" * (MAX_FILE_LINES + 1)),
    ("file name", "plugins/one/utils.py", "x = 1\n"),
    ("file name", "swift_rlx/rewards/common/x.py", "x = 1\n"),
    ("broad catch", "swift_rlx/trainers/x.py", CATCH.format("")),
    ("broad catch", "swift_rlx/trainers/x.py", CATCH.format(" Exception")),
    ("broad catch", "swift_rlx/trainers/x.py", CATCH.format(" (OSError, BaseException) as error")),
    ("broad catch", "swift_rlx/trainers/x.py", "with contextlib.suppress(Exception):\n    f()\n"),
    ("pickle", "swift_rlx/trainers/x.py", "import pickle\n"),
    ("pickle", "swift_rlx/trainers/x.py", "from torch import load\n"),
    ("pickle", "swift_rlx/trainers/x.py", "torch.save({}, 'x')\n"),
    ("pickle", "swift_rlx/trainers/x.py", "numpy.load('x', allow_pickle=True)\n"),
    ("print", "swift_rlx/trainers/x.py", "print(1)\n"),
]


@pytest.mark.parametrize(("rule", "path", "source"), PLANTED)
def test_a_planted_violation_is_found(rule, path, source):
    assert [text.split(":")[0] for text in violations(path, source)] == [rule]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("swift_rlx/algorithms/x.py", "import torch\nfrom ..errors import ConfigError\nfrom .kl import k1\n"),
        ("swift_rlx/rewards/x.py", "import math_verify\nfrom swift_rlx import __version__, registry\n"),
        ("swift_rlx/backends/transformers_x.py", "import numpy, peft, torch, transformers\n"),
        ("swift_rlx/integration/x.py", "import swift\nfrom swift_rlx.trainers import rloo\n"),
        ("swift_rlx/integration/x.py", "from .. import _hooks\nfrom . import contract\n"),
        ("swift_rlx/cli/x.py", "from swift_rlx import RLOOTrainer\nprint(1)\n"),
        ("swift_rlx/trainers/x.py", "try:\n    f()\nexcept Exception as e:\n    raise ValueError from e\n"),
        ("tests/x.py", "import pickle\nprint(1)\n"),
    ],
)
def test_code_within_the_rules_passes(path, source):
    assert violations(path, source) == []
