"""What each spoiled fact leads to: the status, the text and the exit code."""

import pytest
from doctor_facts import environment, probe, reward

from swift_rlx.cli.checks import Status
from swift_rlx.cli.diagnosis import diagnose


def _check(report, name):
    [found] = [c for section in report.sections for c in section.checks if c.name == name]
    return found


def _statuses(report, status):
    return set(report.named(status))


def test_a_healthy_installation_has_neither_warnings_nor_failures():
    report = diagnose(environment(), probe())
    assert report.exit_code == 0
    assert not report.named(Status.WARN)
    assert "4.6.0 (tested)" in report.as_text()


CONTRACT = {"clauses": 3, "breaches": [], "tested": ["4.5.3", "4.6.0"], "version_problem": None}
HOOK = {"not_live": None, "plugins": {}, "failures": {}}

FAILURES = {
    "a broken clause": (
        {},
        {"contract": CONTRACT | {"breaches": ["swift.a.B.c is missing", "swift.d has no e"]}},
        "contract",
        "2 of 3 clauses are broken: swift.a.B.c is missing; swift.d has no e",
        "pip install 'ms-swift==4.6.0'",
    ),
    "the contract cannot be read": (
        {},
        {"errors": {"contract": "RuntimeError: no"}},
        "contract",
        "not checked: RuntimeError: no",
        "repair",
    ),
    "no hook file": (
        {"hook_files": {}},
        {"found_at_start": False, "hook": HOOK | {"not_live": "the import hook is not in place"}},
        "hook",
        "the import hook is not in place",
        "python -m swift_rlx rlhf",
    ),
    "switched off": (
        {"plugins_choice": "0"},
        {"hook": HOOK | {"not_live": "SWIFT_PLUGINS=0 switches all plugins off"}},
        "hook",
        "SWIFT_PLUGINS=0",
        "unset SWIFT_PLUGINS",
    ),
    "our plugin fails": (
        {},
        {"hook": HOOK | {"not_live": "adapting failed", "failures": {"swift_rlx": "adapting failed"}}},
        "hook",
        "adapting failed",
        "SWIFT_PLUGINS_STRICT=1",
    ),
    "the hook cannot be asked": (
        {},
        {"errors": {"hook": "ImportError: x"}},
        "hook",
        "not checked: ImportError: x",
        "pip install",
    ),
    "the type is not accepted": (
        {},
        {"types": ["reinforce_pp"]},
        "rlhf_type",
        "does not accept --rlhf_type rloo",
        "repair the hook",
    ),
    "the arguments cannot be built": (
        {},
        {"errors": {"types": "TypeError: x"}},
        "rlhf_type",
        "cannot be built: TypeError: x",
        "repair",
    ),
    "a dependency is missing": (
        {},
        {"errors": {"trainers": "ModuleNotFoundError: No module named 'some_thing.part'"}},
        "trainers",
        "the trainers do not import: ModuleNotFoundError",
        "pip install some-thing",
    ),
    "ms-swift does not import": (
        {},
        {"errors": {"swift": "OSError: libcudart.so"}},
        "trainers",
        "ms-swift does not import: OSError: libcudart.so",
        "repair or reinstall",
    ),
    "no ms-swift": (
        {"packages": {"ms-swift": None, "torch": "2.13.0"}},
        {
            "errors": dict.fromkeys(
                ("swift", "contract", "types"), "ModuleNotFoundError: No module named 'swift'"
            )
        },
        "ms-swift",
        "not installed",
        "pip install 'ms-swift<4.7,>=4.5.2'",
    ),
    "no trl": (
        {"packages": {"ms-swift": "4.6.0", "trl": None}},
        {},
        "trl",
        "not installed",
        "pip install 'trl'",
    ),
    "the interpreter dies": (
        {},
        {"errors": {"interpreter": "it ended with exit code -11: no output"}},
        "interpreter",
        "exit code -11",
        "install swift-rlx for this interpreter",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_what_keeps_rloo_from_running_fails_with_its_remedy(case):
    environment_changes, probe_changes, name, detail, remedy = FAILURES[case]
    report = diagnose(environment(**environment_changes), probe(**probe_changes))
    found = _check(report, name)
    assert found.status is Status.FAIL
    assert detail in found.detail
    assert remedy in found.remedy
    assert report.exit_code == 1
    assert detail.split(";")[0] in " ".join(report.as_text().split())


WARNINGS = {
    "a broken reward package": (
        {},
        {
            "rewards": [
                reward("x", problem="reward 'x' from p 1 does not load: ImportError: y; repair that package")
            ]
        },
        "x",
        "does not load: ImportError: y",
        "repair that package (needed only with --reward_funcs x)",
    ),
    "a reward with a wrong signature": (
        {},
        {"rewards": [reward("x", problem="reward 'x' has 'a' as its first parameter")]},
        "x",
        "first parameter",
        "repair or uninstall its package",
    ),
    "two packages offer one reward": (
        {},
        {
            "rewards": [
                {"name": "x", "providers": ["a 1", "b 2"], "problem": "offered by a 1 and by b 2; rename one"}
            ]
        },
        "x",
        "offered by a 1 and by b 2",
        "rename one",
    ),
    "another plugin fails": (
        {},
        {"hook": HOOK | {"failures": {"other": "other:register of other 1 failed"}}},
        "plugin other",
        "of other 1 failed",
        "uninstall its package",
    ),
    "outside the supported range": (
        {},
        {"contract": CONTRACT | {"version_problem": "ms-swift 4.9.0 is outside >=4.5.2,<4.7"}},
        "ms-swift",
        "ms-swift 4.9.0 is outside",
        "pip install 'ms-swift==4.6.0'",
    ),
    "no swift on PATH": (
        {"swift_command": None},
        {},
        "swift command",
        "not on PATH",
        "/env/bin/swift",
    ),
    "swift of another environment": (
        {"swift_command": "/usr/bin/swift"},
        {},
        "swift command",
        "/usr/bin/swift does not belong to /env/bin/python",
        "activate",
    ),
    "a hook file of another version": (
        {"hook_files": {"/env/lib/swift_rlx.pth": False}},
        {},
        "hook file",
        "/env/lib/swift_rlx.pth is not of this version",
        "--force-reinstall",
    ),
    "a source tree": (
        {"own_version": None, "extras": {}},
        {},
        "swift-rlx",
        "not installed",
        "python -m swift_rlx",
    ),
    "another system": ({"system": "Darwin arm64"}, {}, "platform", "Darwin arm64 is not tested", "Linux"),
    "torch does not import": (
        {},
        {"errors": {"devices": "OSError: x"}},
        "devices",
        "OSError: x",
        "repair torch",
    ),
    "a busy port": (
        {"port": "29511", "port_problem": "is taken by another program"},
        {},
        "port",
        "29511, where the ranks of a run meet, is taken by another program",
        "set MASTER_PORT to a free port",
    ),
    "no process group": (
        {},
        {"devices": {"accelerators": ["A, 1 GiB"], "cores": 1, "backends": []}},
        "process groups",
        "one process only",
        "gloo",
    ),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_what_does_not_keep_rloo_from_running_warns_with_its_remedy_and_exit_code_0(case):
    environment_changes, probe_changes, name, detail, remedy = WARNINGS[case]
    report = diagnose(environment(**environment_changes), probe(**probe_changes))
    found = _check(report, name)
    assert found.status is Status.WARN
    assert detail in found.detail
    assert remedy in found.remedy
    assert report.exit_code == 0


def test_a_missing_file_of_a_hook_that_is_live_all_the_same_is_no_failure():
    report = diagnose(environment(hook_files={}), probe(found_at_start=True))
    assert _check(report, "hook file").status is Status.OK
    assert report.exit_code == 0


def test_an_untested_release_inside_the_range_says_which_are_tested():
    packages = environment().packages | {"ms-swift": "4.6.1"}
    found = _check(diagnose(environment(packages=packages), probe()), "ms-swift")
    assert found.status is Status.OK
    assert found.detail == "4.6.1 (supported; tested are 4.5.3 and 4.6.0)"


def test_a_clause_that_is_broken_by_a_missing_dependency_says_to_install_it():
    broken = CONTRACT | {"breaches": ["swift.x is missing (No module named 'msgspec')"]}
    errors = {"trainers": "ModuleNotFoundError: No module named 'msgspec'"}
    found = _check(diagnose(environment(), probe(errors, contract=broken)), "contract")
    assert found.remedy == "pip install msgspec"


def test_a_reward_says_where_it_comes_from_and_how_it_is_called():
    odd = reward("x", version="7", per_completion=True, is_async=True, required_columns=["gold", "unit"])
    report = diagnose(environment(), probe(rewards=[odd, reward("y")]))
    assert (
        _check(report, "x").detail
        == "some-package 1.0; version 7; one completion a call; async; needs gold, unit"
    )
    assert _check(report, "x").data["required_columns"] == ["gold", "unit"]
    assert _check(report, "y").detail == "some-package 1.0; a list of completions a call"


def test_engines_extras_and_accelerators_are_listed_without_judgment():
    devices = {
        "accelerators": ["NVIDIA X, 80 GiB", "NVIDIA X, 80 GiB"],
        "cores": 8,
        "backends": ["nccl", "gloo"],
    }
    report = diagnose(environment(), probe(devices=devices))
    assert _check(report, "device 1").detail == "NVIDIA X, 80 GiB"
    assert _check(report, "process groups").detail == "nccl, gloo"
    assert _check(report, "vllm").detail == "not installed (optional)"
    assert _check(report, "sglang").detail == "0.6"
    assert "pip install '.[math]'` in the clone of swift-rlx" in _check(report, "math").detail
    assert _check(report, "webui").detail == "gradio 6.0"
    assert report.exit_code == 0


def test_without_ms_swift_every_line_that_depends_on_it_says_so():
    steps = ("swift", "contract", "trainers", "types", "rewards")
    errors = dict.fromkeys(steps, "ModuleNotFoundError: No module named 'swift'")
    report = diagnose(environment(packages={"ms-swift": None, "torch": "2"}), probe(errors))
    assert _statuses(report, Status.FAIL) == {"ms-swift", "hook", "contract"}
    assert _check(report, "rewards").detail == "not listed: ms-swift is not installed"
    assert _check(report, "hook").remedy == "install or repair ms-swift first"
