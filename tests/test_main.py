"""`python -m swift_rlx rlhf`, with a stand-in for ms-swift: commands, launch, and what is refused."""

from __future__ import annotations

import json

import pytest
from sandbox import MS_SWIFT, Sandbox

# `parse_yaml_args` and `get_torchrun_args` with the signatures and effects of ms-swift's `swift.cli.main`.
SWIFT_CLI = {
    "swift/cli/__init__.py": "",
    "swift/cli/main.py": """
        import os

        def parse_yaml_args(argv):
            if argv and argv[0].endswith(".yaml"):
                argv[0:1] = open(argv[0]).read().split()

        def get_torchrun_args():
            count = os.getenv("NPROC_PER_NODE")
            return None if count is None else ["--nproc_per_node", count]
    """,
    "swift/cli/utils.py": "def try_use_single_device_mode(): pass\n",
    "swift/pipelines.py": """
        import json, sys

        def rlhf_main(argv):
            print(json.dumps({"argv": argv, "hook": any(hasattr(f, "swift_rlx") for f in sys.meta_path)}))
    """,
    "torch/__init__.py": "",
    "torch/distributed/__init__.py": "",
    "torch/distributed/run.py": "import json, sys\nprint(json.dumps(sys.argv[1:]))\n",
}


@pytest.fixture
def swift_rlx(tmp_path):
    """Runs `python -m swift_rlx` beside a stand-in for ms-swift and torchrun."""
    sandbox = Sandbox(tmp_path, {**MS_SWIFT, **SWIFT_CLI, "config.yaml": "--rlhf_type rloo"})
    return lambda *arguments, **environment: sandbox.python("-m", "swift_rlx", *arguments, **environment)


def test_rlhf_runs_in_this_process_with_the_hook_in_place(swift_rlx):
    result = swift_rlx("rlhf", "--rlhf_type", "rloo")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {"argv": ["--rlhf_type", "rloo"], "hook": True}


def test_a_configuration_file_becomes_arguments(swift_rlx):
    result = swift_rlx("rlhf", "config.yaml", "--seed", "1")
    assert json.loads(result.stdout)["argv"] == ["--rlhf_type", "rloo", "--seed", "1"]


def test_several_processes_are_started_by_torchrun_with_the_same_command(swift_rlx):
    result = swift_rlx("rlhf", "config.yaml", NPROC_PER_NODE="2")
    assert json.loads(result.stdout) == [
        *["--nproc_per_node", "2", "-m", "swift_rlx"],
        *["rlhf", "--rlhf_type", "rloo"],
    ]


def test_a_process_that_torchrun_has_started_trains(swift_rlx):
    result = swift_rlx("rlhf", "--seed", "1", NPROC_PER_NODE="2", LOCAL_RANK="0")
    assert json.loads(result.stdout)["argv"] == ["--seed", "1"]


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_shows_an_example(swift_rlx, option):
    result = swift_rlx(option)
    assert result.returncode == 0
    assert "python -m swift_rlx rlhf --rlhf_type rloo" in result.stdout


def test_no_command_shows_the_usage_and_fails(swift_rlx):
    result = swift_rlx()
    assert result.returncode == 2
    assert result.stdout.startswith("usage: python -m swift_rlx rlhf")


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["sft"], {}, "'sft' is not a command of swift_rlx, which runs 'rlhf' only: run `swift sft ...`"),
        (["rlfh", "x.yaml"], {}, "'rlfh' is not a command of swift_rlx"),
        (["rlhf", "no.yaml"], {}, "the configuration file 'no.yaml' does not exist"),
        (["rlhf"], {"SWIFT_PLUGINS": "0"}, "is not active: SWIFT_PLUGINS=0 switches all plugins off"),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(swift_rlx, arguments, environment, sentence):
    result = swift_rlx(*arguments, **environment)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("openstack", [False, True])
def test_a_missing_ms_swift_is_said_in_one_sentence(tmp_path, openstack):
    files = {"swift/__init__.py": "", "swift/cli/__init__.py": ""} if openstack else {}
    result = Sandbox(tmp_path, files).python("-m", "swift_rlx", "rlhf")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ms-swift is not installed for ")
    assert result.stderr.count("\n") == 1


def test_a_module_that_ms_swift_itself_misses_is_not_blamed_on_ms_swift(tmp_path):
    files = {**MS_SWIFT, **SWIFT_CLI, "swift/cli/main.py": "import no_such_module\n"}
    result = Sandbox(tmp_path, files).python("-m", "swift_rlx", "rlhf")
    assert result.returncode == 1
    assert result.stderr.endswith("ModuleNotFoundError: No module named 'no_such_module'\n")
