"""Plugins of ms-swift: which are loaded, what their faults do, and what the finder leaves alone.

Each test runs a fresh interpreter with a stand-in for ms-swift.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from sandbox import MS_SWIFT, Sandbox

from swift_rlx import _plugin

# The process-wide Hooks also has the plugin of this package, which needs the real ms-swift: put a bare one in
# its place, and install the finder.
START = """
import json, sys
from swift_rlx import _boot, _hooks
hooks = _hooks.hooks = _hooks.Hooks()
_boot.install()
"""

WIDEN = """
def register(on_import):
    on_import("swift.arguments.rlhf_args", widen)

def widen(module):
    class RLHFArguments(module.RLHFArguments):
        types = module.RLHFArguments.types + (__name__,)
    module.RLHFArguments = RLHFArguments
"""

SHOW_TYPES = START + "import swift.arguments\nprint(json.dumps(swift.arguments.RLHFArguments.types))"


@pytest.fixture
def fake_swift(tmp_path):
    return Sandbox(tmp_path, MS_SWIFT)


def _types(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_callback_changes_a_module_before_its_first_importer_sees_it(fake_swift):
    fake_swift.plugin("one", WIDEN)
    result = fake_swift.run(SHOW_TYPES)
    assert _types(result) == ["dpo", "grpo", "one"]
    assert result.stderr == ""


def test_callbacks_run_by_plugin_name_and_then_in_the_order_of_the_requests(fake_swift):
    fake_swift.plugin("b_second", WIDEN)
    fake_swift.plugin(
        "a_first",
        """
        import functools

        def register(on_import):
            on_import("swift.arguments.rlhf_args", functools.partial(add, "x"))
            on_import("swift.arguments.rlhf_args", functools.partial(add, "y"))

        def add(word, module):
            module.RLHFArguments.types += (word,)
        """,
    )
    assert _types(fake_swift.run(SHOW_TYPES)) == ["dpo", "grpo", "x", "y", "b_second"]


BROKEN = {
    "does not parse": ("def register(:\n", "SyntaxError", "registering"),
    "import fails": ("import no_such_module\n", "no_such_module", "registering"),
    "has no register": ("", "has no attribute 'register'", "registering"),
    "register raises": (
        "def register(on_import):\n"
        "    on_import('swift.arguments.rlhf_args', lambda module: module.RLHFArguments.no_such)\n"
        "    raise KeyError('planted fault')\n",
        "planted fault",
        "registering",
    ),
    "asks for a module outside swift": (
        "def register(on_import):\n    on_import('torch.nn', print)\n",
        "on_import got the name 'torch.nn'",
        "registering",
    ),
    "callbacks raise": (
        "def register(on_import):\n"
        "    on_import('swift.arguments.rlhf_args', lambda module: module.no_such)\n"
        "    on_import('swift.arguments.rlhf_args', lambda module: module.RLHFArguments.no_such)\n",
        "has no attribute 'no_such'",
        "adapting swift.arguments.rlhf_args",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_named_once_and_swift_and_the_other_plugins_go_on(fake_swift, kind):
    source, message, doing = BROKEN[kind]
    fake_swift.plugin("broken", source)
    fake_swift.plugin("sound", WIDEN)
    result = fake_swift.run(SHOW_TYPES + "\nprint(json.dumps(hooks.failures), file=sys.stderr)")
    assert _types(result) == ["dpo", "grpo", "sound"]
    *printed, failures = result.stderr.splitlines()
    assert "swift plugin 'broken' is left out" in printed[0]
    assert f"broken:register of dist-broken 1.0 failed while {doing}" in printed[0]
    assert "\n".join(printed).count("Traceback (most recent call last)") == 1
    assert message in printed[-1]
    assert list(json.loads(failures)) == ["broken"]
    assert message in json.loads(failures)["broken"]


def test_a_plugin_whose_registration_failed_leaves_no_callback_behind(fake_swift):
    source, _, _ = BROKEN["register raises"]
    fake_swift.plugin("broken", source)
    result = fake_swift.run(SHOW_TYPES + "\nprint(hooks.failures['broken'], file=sys.stderr)")
    assert "no_such" not in result.stderr


@pytest.mark.parametrize("kind", BROKEN)
def test_strict_mode_raises_the_fault_of_a_plugin(fake_swift, kind):
    source, message, doing = BROKEN[kind]
    fake_swift.plugin("broken", source)
    result = fake_swift.run(SHOW_TYPES, SWIFT_PLUGINS_STRICT="1")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("swift_rlx.errors.PluginError: swift plugin 'broken': ")
    assert doing in last
    assert message in last
    assert fake_swift.run(SHOW_TYPES, SWIFT_PLUGINS_STRICT="0").returncode == 0


@pytest.mark.parametrize("value", ["0", "none", "None", " 0 "])
def test_plugins_can_be_switched_off(fake_swift, value):
    fake_swift.plugin("one", WIDEN)
    code = SHOW_TYPES + "\nprint('one' in sys.modules, hooks.why_not_live('one'), file=sys.stderr)"
    result = fake_swift.run(code, SWIFT_PLUGINS=value)
    assert _types(result) == ["dpo", "grpo"]
    assert result.stderr.startswith("False ")
    assert f"SWIFT_PLUGINS={value.strip()} switches all plugins off" in result.stderr


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", ["one", "three", "two"]), ("two", ["two"]), ("two, one", ["one", "two"]), ("one,one,", ["one"])],
)
def test_plugins_can_be_chosen_by_name(fake_swift, value, expected):
    for name in ("one", "two", "three"):
        fake_swift.plugin(name, WIDEN)
    assert _types(fake_swift.run(SHOW_TYPES, SWIFT_PLUGINS=value)) == ["dpo", "grpo", *expected]


def test_a_chosen_plugin_that_no_package_offers_is_named(fake_swift):
    fake_swift.plugin("one", WIDEN)
    result = fake_swift.run(SHOW_TYPES, SWIFT_PLUGINS="one,wrong")
    assert _types(result) == ["dpo", "grpo", "one"]
    assert "swift plugin 'wrong' is left out" in result.stderr
    assert "SWIFT_PLUGINS=one,wrong asks for it, no package offers it (there is: one)" in result.stderr


def test_one_plugin_offered_by_two_distributions_runs_once(fake_swift):
    fake_swift.plugin("one", WIDEN)
    fake_swift.distribution("renamed", "[swift.plugins]\none = one:register\n")
    result = fake_swift.run(SHOW_TYPES)
    assert _types(result) == ["dpo", "grpo", "one"]
    assert result.stderr == ""


def test_two_plugins_of_one_name_are_both_named_and_neither_runs(fake_swift):
    fake_swift.plugin("one", WIDEN)
    fake_swift.plugin("two", WIDEN)
    fake_swift.distribution("rival", "[swift.plugins]\none = two:register\n")
    result = fake_swift.run(SHOW_TYPES)
    assert _types(result) == ["dpo", "grpo", "two"]
    assert "swift plugin 'one' is left out" in result.stderr
    assert "one:register of dist-one 1.0" in result.stderr
    assert "two:register of rival 1.0" in result.stderr


def test_broken_metadata_of_another_package_is_reported_and_swift_goes_on(fake_swift):
    code = SHOW_TYPES.replace("_boot.install()", "_hooks.entry_points = lambda group: 1 / 0\n_boot.install()")
    result = fake_swift.run(code)
    assert _types(result) == ["dpo", "grpo"]
    assert "the installed packages cannot be listed: ZeroDivisionError" in result.stderr


def test_the_swift_package_of_openstack_is_left_alone(tmp_path):
    files = {"swift/__init__.py": "", "swift/common/__init__.py": "", "swift/proxy.py": "x = 1\n"}
    sandbox = Sandbox(tmp_path, files)
    sandbox.plugin("one", WIDEN)
    code = START + "import swift.common, swift.proxy\nprint('one' in sys.modules, hooks.why_not_live('one'))"
    result = sandbox.run(code)
    assert result.stdout.startswith("False ")
    assert "not ms-swift 4" in result.stdout
    assert result.stderr == ""


def test_a_module_that_is_imported_already_gets_its_callback_at_once(fake_swift):
    fake_swift.plugin("one", WIDEN)
    result = fake_swift.run(
        "import swift.arguments" + START + "print(swift.arguments.rlhf_args.RLHFArguments.types)"
    )
    assert result.stdout == "('dpo', 'grpo', 'one')\n"
    assert result.stderr == ""


def test_callbacks_may_be_asked_for_after_the_registration(fake_swift):
    fake_swift.plugin(
        "late",
        """
        def register(on_import):
            on_import("swift.version", lambda module: on_import("swift.trainers.trainer_factory", mark))

        def mark(module):
            module.mapping["late"] = 1
        """,
    )
    result = fake_swift.run(START + "from swift.trainers import trainer_factory as f\nprint(f.mapping)")
    assert (result.stdout, result.stderr) == ("{'late': 1}\n", "")


def test_installing_twice_leaves_one_finder_and_runs_callbacks_once(fake_swift):
    fake_swift.plugin("one", WIDEN)
    again = "_boot.install()\nexec(_boot.PTH)\n_boot.install()\n"
    result = fake_swift.run(
        SHOW_TYPES.replace("_boot.install()", again)
        + "\nprint(sum(hasattr(f, 'swift_rlx') for f in sys.meta_path), file=sys.stderr)"
    )
    assert _types(result) == ["dpo", "grpo", "one"]
    assert result.stderr == "1\n"


WHY_NOT_LIVE = {
    "live": ("import swift.version", {}, None),
    "no finder": ("sys.meta_path.remove(_boot.finder())", {}, "its .pth file is not read under `python -S`"),
    "too early": ("", {}, "nothing of ms-swift has been imported"),
    "left out": ("import swift.version", {"SWIFT_PLUGINS": "other"}, "SWIFT_PLUGINS=other leaves it out"),
    "failed": ("sys.modules['one'] = None; import swift.version", {}, "failed while registering"),
    "hooks broken": ("import swift.version; _boot.finder().swift_rlx = 'some fault'", {}, "some fault"),
}


@pytest.mark.parametrize("case", WHY_NOT_LIVE)
def test_why_a_plugin_is_not_live_is_said_in_one_sentence(fake_swift, case):
    code, environment, expected = WHY_NOT_LIVE[case]
    fake_swift.plugin("one", WIDEN)
    fake_swift.plugin("other", WIDEN)
    result = fake_swift.run(START + code + "\nprint(json.dumps(hooks.why_not_live('one')))", **environment)
    reason = json.loads(result.stdout)
    assert reason is None if expected is None else expected in reason


def test_a_plugin_that_no_package_offers_is_not_live(fake_swift):
    result = fake_swift.run(START + "import swift.version\nprint(hooks.why_not_live('one'))")
    assert result.stdout == "the plugin 'one' of ms-swift is not active: no installed package offers it\n"


def test_our_own_plugin_registers_without_installed_metadata(fake_swift):
    result = fake_swift.run(
        "from swift_rlx import _boot; _boot.install()\n"
        "import swift.version\n"
        "from swift_rlx._hooks import hooks\n"
        "print(hooks.plugins['swift_rlx'], hooks.why_not_live('swift_rlx'))"
    )
    assert "target='swift_rlx._plugin:register', origin='no installed distribution'" in result.stdout
    assert result.stdout.endswith(" None\n")


def test_our_own_plugin_asks_for_its_targets_and_each_adapter_has_an_install_function():
    asked = []
    _plugin.register(lambda name, callback: asked.append(name))
    assert asked == list(_plugin.TARGETS)
    package = Path(_plugin.__file__).parents[1]
    for adapter in _plugin.TARGETS.values():
        tree = ast.parse((package / f"{adapter.replace('.', '/')}.py").read_text(encoding="utf-8"))
        assert "install" in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)], adapter
