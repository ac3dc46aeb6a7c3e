"""Reading versions, extras, hook files and variables, with invented packages on the path."""

import site
import socket
import sys

import pytest

from swift_rlx.cli.environment import HOOK_FILE, HOOK_TEXT, installed_version, read_environment

METADATA = """\
Name: swift-rlx
Version: 9.9
Requires-Dist: ms-swift<4.7,>=4.5.2
Provides-Extra: dev
Requires-Dist: invented-tool>=1; extra == 'dev'
Provides-Extra: math
Requires-Dist: invented-math>=0.8; extra == "math"
Requires-Dist: invented_absent; (python_version >= "3.8") and extra == "math"
"""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder first on sys.path, in which a test may make distributions look installed."""
    monkeypatch.syspath_prepend(tmp_path)

    def add(name, metadata):
        folder = tmp_path / f"{name.replace('-', '_')}-0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(metadata, encoding="utf-8")

    return add


def test_versions_and_extras_come_from_the_metadata_and_dev_is_left_out(packages):
    packages("swift-rlx", METADATA)
    packages("invented-math", "Name: invented-math\nVersion: 0.9\n")
    packages("invented-tool", "Name: invented-tool\nVersion: 1\n")
    found = read_environment()
    assert found.own_version == "9.9"
    assert found.supported == "ms-swift<4.7,>=4.5.2"
    assert found.extras == {"math": {"invented-math": "0.9", "invented_absent": None}}
    assert installed_version("invented-absent") is None


def test_hook_file_copies_are_found_and_compared_with_this_version(tmp_path, monkeypatch):
    other = tmp_path / "user"
    other.mkdir()
    (tmp_path / HOOK_FILE).write_text(HOOK_TEXT, encoding="utf-8")
    (other / HOOK_FILE).write_text("import older\n", encoding="utf-8")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path), str(tmp_path)])
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(other))
    assert read_environment().hook_files == {
        str(tmp_path / HOOK_FILE): True,
        str(other / HOOK_FILE): False,
    }


def test_a_file_that_this_python_does_not_read_does_not_count(tmp_path, monkeypatch):
    [unread] = {"swift_rlx.pth", "swift_rlx.start"} - {HOOK_FILE}
    (tmp_path / unread).write_text("anything\n", encoding="utf-8")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    assert read_environment().hook_files == {}


def test_the_file_that_this_repository_ships_is_current(request, monkeypatch):
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(request.config.rootpath)])
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    assert list(read_environment().hook_files.values()) == [True]


def test_the_command_and_the_variables_are_those_of_the_process(tmp_path, monkeypatch):
    command = tmp_path / "swift"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SWIFT_PLUGINS", "a,b")
    monkeypatch.setenv("SWIFT_PLUGINS_STRICT", "1")
    found = read_environment()
    assert (found.swift_command, found.plugins_choice, found.strict) == (str(command), "a,b", "1")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("SWIFT_PLUGINS")
    assert (read_environment().swift_command, read_environment().plugins_choice) == (None, None)
    assert read_environment().executable == sys.executable


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_on_which_somebody_listens_is_taken(monkeypatch, host):
    with socket.create_server((host, 0)) as server:
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        assert read_environment().port_problem == "is taken by another program"
    assert read_environment().port_problem is None
    for text in ("none", "-1", "70000"):
        monkeypatch.setenv("MASTER_PORT", text)
        assert (read_environment().port, read_environment().port_problem) == (text, "is no port")
    monkeypatch.delenv("MASTER_PORT")
    assert read_environment().port == "29500"
