"""`swift-rlx reward`: a new package that works as it is, and what `serve` refuses."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import tomllib

from swift_rlx.cli.main import main
from swift_rlx.rewards import REWARDS, register_reward
from swift_rlx.testing import check_reward


def test_a_new_package_has_all_that_a_distribution_needs(tmp_path, capsys):
    assert main(["reward", "new", "polite_answer", "--directory", str(tmp_path)]) == 0
    folder = tmp_path / "polite-answer"
    files = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    assert files == {
        *("pyproject.toml", "README.md", ".gitignore", "polite_answer/__init__.py", "polite_answer/py.typed"),
        "tests/test_polite_answer.py",
    }
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "polite-answer"
    offered = project["entry-points"]["swift_rlx.rewards"]
    assert offered == {"polite_answer": "polite_answer:polite_answer"}
    assert not [file for file in files if "{{" in (folder / file).read_text(encoding="utf-8")]
    assert "--reward_funcs polite_answer" in capsys.readouterr().out


def test_the_reward_of_a_new_package_passes_the_suite(tmp_path, monkeypatch):
    main(["reward", "new", "ends_well", "--directory", str(tmp_path)])
    monkeypatch.syspath_prepend(str(tmp_path / "ends-well"))
    module = importlib.import_module("ends_well")
    try:
        check_reward(module.ends_well, examples=["It is.", "It is"])
    finally:
        del sys.modules["ends_well"]


@pytest.mark.parametrize("name", ["Polite", "polite-answer", "1st", "a__b", "_a", "class", "", "a b", "ä"])
def test_a_name_that_cannot_be_a_package_is_refused(tmp_path, capsys, name):
    assert main(["reward", "new", name, "--directory", str(tmp_path)]) == 2
    assert f"reward new {name!r} is refused" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_is_left_alone(tmp_path, capsys):
    (tmp_path / "my-reward").mkdir()
    assert main(["reward", "new", "my_reward", "--directory", str(tmp_path)]) == 2
    assert "exists" in capsys.readouterr().err
    assert not list(Path(tmp_path, "my-reward").iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--reward a a", "names a reward twice"), ("--reward model:/x", "is refused: give a reward's name"),
        ("--reward x=wco(a,b", "the ( at character 6 is not closed: end it with ), as in safe=wco(a, b)"),
        ("--reward x=median(a,b)", "JOIN one of mean, wco, min, uwo, uwo:C"), ("--reward x=mean(a,)", "is refused"),
        ("--reward a --host 0.0.0.0", "without a token is refused"),
        ("--reward a --port 99999", "--port 99999 is refused: use 1 to 65535"),
        ("--reward a --workers 0", "--workers 0 is refused: use 1 to 256"),
        ("--reward a --batch-rows 0", "--batch-rows 0 is refused"),
        ("--reward a --max-queued-rows -1", "--max-queued-rows -1 is refused"),
        *((f"--reward a --batch-limit-s {value}", f"--batch-limit-s {value} is refused: use seconds, more than 0")
          for value in ("0", "-1", "nan", "inf")),
        *((f"--reward a --batch-window-s {value}", f"--batch-window-s {value} is refused: use seconds, 0 or more")
          for value in ("-0.5", "nan", "inf")),
        ("--reward a --external-plugins /none.py", "--external-plugins /none.py is refused: there is no such file"),
        ("--reward a --external_plugins /none.py", "--external-plugins /none.py is refused: there is no such file"),
        ("--reward a --loader nothing", "MODULE:FUNCTION"), ("--reward a --loader-options [1]", "give a JSON object"),
        ("--reward a --certificate c.pem", "belong together"), ("--reward a --tenants /none", "cannot be read"),
    ],
)  # fmt: skip
def test_serve_refuses_what_cannot_work_before_it_starts_anything(monkeypatch, capsys, options, words):
    monkeypatch.delenv("SWIFT_RLX_REWARD_TOKEN", raising=False)
    assert main(["reward", "serve", *options.split()]) == 2
    assert words in capsys.readouterr().err


def test_serve_says_what_to_install(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "fastapi" else found(name, *a)
    )
    assert main(["reward", "serve", "--reward", "a"]) == 2
    assert "pip install 'swift-rlx[serve]'" in capsys.readouterr().err


def test_a_command_without_its_own_command_says_which_there_are(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["reward"])
    assert ended.value.code == 2
    assert "swift-rlx reward --help" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("json", "a module of Python"), ("pytest", "an installed module ("), ("accuracy", "a reward of ms-swift"),
        ("taken_here", "a reward of file "), ("ms_swift", "the installed distribution ms"),
    ],
)  # fmt: skip
def test_a_name_that_is_taken_is_refused(tmp_path, monkeypatch, capsys, name, owner):
    monkeypatch.setattr(REWARDS, "_registered", {})
    register_reward("taken_here")(lambda completion: 0.0)
    assert main(["reward", "new", name, "--directory", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"reward new {name} is refused: {owner}" in error
    assert "has that name; choose another one" in error
    assert not list(tmp_path.iterdir())
