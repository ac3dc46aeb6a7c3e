"""The finder beside everything else that takes part in Python's imports: loaders, reloads, other finders.

Each test runs a fresh interpreter with a stand-in for ms-swift and a plugin that records which module each
callback was given.
"""

from __future__ import annotations

import json

import pytest
from sandbox import MS_SWIFT, Sandbox

from swift_rlx import _boot

START = """
import json, sys
from swift_rlx import _boot, _hooks
hooks = _hooks.hooks = _hooks.Hooks()
_boot.install()
"""

RECORD = """
import sys

seen = []

def register(on_import):
    for name in ("swift.arguments.rlhf_args", "swift.trainers", "swift.trainers.trainer_factory"):
        on_import(name, lambda module, name=name: seen.append((name, module is sys.modules.get(name))))
"""


@pytest.fixture
def fake_swift(tmp_path):
    return Sandbox(tmp_path, MS_SWIFT)


@pytest.fixture
def recorded(fake_swift):
    """Runs code in a sandbox with the recording plugin, and returns what the callbacks saw."""
    fake_swift.plugin("record", RECORD)

    def run(code):
        result = fake_swift.run(START + code + "\nimport record\nprint(json.dumps(record.seen))")
        assert (result.returncode, result.stderr) == (0, "")
        return json.loads(result.stdout)

    return run


ARGUMENTS = ["swift.arguments.rlhf_args", True]


def test_the_loader_keeps_its_type_and_its_own_exec_module(recorded):
    seen = recorded(
        "import importlib.machinery, inspect, pickle, swift.arguments.rlhf_args as module\n"
        "loader = module.__spec__.loader\n"
        "assert type(loader) is importlib.machinery.SourceFileLoader and loader is module.__loader__\n"
        "assert 'exec_module' not in vars(loader)\n"
        "assert pickle.loads(pickle.dumps(module.__spec__)).origin == module.__file__\n"
        "assert inspect.getsource(module).startswith('class RLHFArguments')"
    )
    assert seen == [ARGUMENTS]


def test_a_reload_runs_the_callbacks_again(recorded):
    code = "import importlib, swift.arguments.rlhf_args as module\nimportlib.reload(module)"
    assert recorded(code) == [ARGUMENTS, ARGUMENTS]


def test_looking_a_module_up_without_importing_it_runs_nothing(recorded):
    code = "import importlib.util\nassert importlib.util.find_spec('swift.arguments.rlhf_args').origin"
    assert recorded("import swift.arguments; del sys.modules['swift.arguments.rlhf_args']\n" + code) == [
        ARGUMENTS
    ]


def test_a_private_copy_of_a_module_is_adapted_in_place_of_the_imported_one(recorded):
    code = (
        "import importlib.util, swift.arguments\n"
        "saved = sys.modules.pop('swift.arguments.rlhf_args')\n"
        "spec = importlib.util.find_spec('swift.arguments.rlhf_args')\n"
        "sys.modules['swift.arguments.rlhf_args'] = saved\n"
        "spec.loader.exec_module(importlib.util.module_from_spec(spec))"
    )
    assert recorded(code) == [ARGUMENTS, ["swift.arguments.rlhf_args", False]]


def test_a_module_that_fails_to_import_raises_its_own_error_and_can_be_imported_later(fake_swift, recorded):
    fake_swift.write({"swift/arguments/rlhf_args.py": "import sys\nsys.good\nclass RLHFArguments: pass\n"})
    code = (
        "try:\n    import swift.arguments.rlhf_args\n"
        "except AttributeError as error:\n    assert 'good' in str(error)\n"
        "else:\n    raise SystemExit('no error')\n"
        "sys.good = True\nimport swift.arguments.rlhf_args"
    )
    assert recorded(code) == [ARGUMENTS]


def test_a_package_that_replaces_itself_is_adapted_as_what_importers_get(fake_swift, recorded):
    lazy = "import sys, types\nsys.modules[__name__] = types.SimpleNamespace(lazy=True, __path__=__path__)\n"
    fake_swift.write({"swift/trainers/__init__.py": lazy})
    assert recorded("from swift import trainers\nassert trainers.lazy") == [["swift.trainers", True]]


def test_a_missing_module_of_swift_is_missing_with_its_usual_error(fake_swift, recorded):
    (fake_swift.folder / "swift/trainers/trainer_factory.py").unlink()
    code = (
        "try:\n    import swift.trainers.trainer_factory\n"
        "except ModuleNotFoundError as error:\n"
        "    assert str(error) == \"No module named 'swift.trainers.trainer_factory'\"\n"
        "else:\n    raise SystemExit('no error')"
    )
    assert recorded(code) == [["swift.trainers", True]]


ASKS_EVERYONE = """
class Asks:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        for finder in sys.meta_path:
            if finder is not cls and (spec := finder.find_spec(name, path, target)):
                return spec
sys.meta_path.insert({position}, Asks)
"""


@pytest.mark.parametrize("position", [0, 1])
def test_another_finder_that_asks_all_finders_ends_and_the_callbacks_run_once(recorded, position):
    assert recorded(ASKS_EVERYONE.format(position=position) + "import swift.arguments") == [ARGUMENTS]


SHARED_LOADER = """
import importlib.machinery, importlib.util
class Shared:
    {slots}
    def create_module(self, spec): return None
    def exec_module(self, module):
        if module.__name__ == 'swift.trainers':
            import swift.trainers.trainer_factory
shared = Shared()
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith('swift.trainers'):
            return importlib.util.spec_from_loader(name, {loader}, is_package=name == 'swift.trainers')
sys.meta_path.append(Finder)
sys.modules.pop('swift.trainers', None)
import shutil, swift
shutil.rmtree(swift.__path__[0] + '/trainers')
"""


def test_a_finder_with_one_loader_for_all_modules_is_served_like_any_other(recorded):
    code = SHARED_LOADER.format(slots="", loader="shared") + (
        "import swift.trainers\n"
        "del sys.modules['swift.trainers.trainer_factory']\n"
        "assert importlib.util.find_spec('swift.trainers.trainer_factory')\n"
        "import swift.trainers.that_nobody_asked_for"
    )
    assert recorded(code) == [["swift.trainers.trainer_factory", True], ["swift.trainers", True]]


def test_a_loader_that_cannot_be_watched_is_reported_and_the_module_is_imported(fake_swift):
    fake_swift.plugin("record", RECORD)
    code = SHARED_LOADER.format(slots="__slots__ = ()", loader="shared") + "import swift.trainers"
    result = fake_swift.run(START + code + "\nimport record\nprint(record.seen, list(hooks.failures))")
    assert result.stdout == "[] ['record']\n"
    assert "does not let swift.trainers be adapted" in result.stderr.splitlines()[0]


def test_importlib_metadata_and_cache_invalidation_work_with_the_finder_in_place(fake_swift, recorded):
    code = (
        "import importlib, importlib.metadata as metadata\nimportlib.invalidate_caches()\n"
        "assert metadata.version('dist-record') == '1.0'\n"
        "assert 'dist-record' in {d.name for d in metadata.distributions()}"
    )
    assert recorded(code) == []


@pytest.mark.parametrize(
    ("package", "reason"),
    [
        ({}, "No module named 'swift_rlx'"),
        ({"swift_rlx/__init__.py": ""}, "No module named 'swift_rlx._hooks'"),
        ({"swift_rlx/__init__.py": "def (:\n"}, "SyntaxError"),
        ({"swift_rlx/__init__.py": "", "swift_rlx/_hooks.py": "1 / 0\n"}, "ZeroDivisionError"),
    ],
)
def test_a_half_removed_package_is_silent_and_leaves_its_reason_on_the_finder(fake_swift, package, reason):
    fake_swift.write(package)
    code = f"{_boot.PTH}import swift.arguments, swift.trainers\nprint(sys.meta_path[0].swift_rlx)"
    result = fake_swift.run(code, PYTHONPATH=str(fake_swift.folder))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("swift_rlx._hooks cannot be imported: ")
    assert reason in result.stdout


def test_hooks_that_cannot_be_imported_are_tried_once(fake_swift):
    count = "import sys\nsys.tries = getattr(sys, 'tries', 0) + 1\n1 / 0\n"
    fake_swift.write({"swift_rlx/__init__.py": "", "swift_rlx/_hooks.py": count})
    code = f"{_boot.PTH}import swift.arguments, swift.trainers\nprint(sys.tries)"
    assert fake_swift.run(code, PYTHONPATH=str(fake_swift.folder)).stdout == "1\n"
