"""The command line of `swift-rlx`: exit codes, help and messages."""

import subprocess
import sys

import pytest

from swift_rlx.cli import main as command_line
from swift_rlx.errors import ConfigError, ContractError


class Invented:
    """A sub-command whose `run` does what the test says."""

    HELP = "an invented command"
    EXAMPLE = "example:\n    swift-rlx invented"

    def __init__(self, action):
        self._action = action

    def add_arguments(self, parser):
        parser.add_argument("--count", type=int, default=0)

    def run(self, options):
        return self._action(options)


@pytest.fixture
def invented(monkeypatch):
    def install(action):
        monkeypatch.setitem(command_line.COMMANDS, "invented", Invented(action))

    return install


def _raising(error):
    def action(options):
        raise error

    return action


def test_a_command_gets_its_options_and_its_exit_code_is_returned(invented):
    invented(lambda options: options.count)
    assert command_line.main(["invented", "--count", "7"]) == 7


def test_a_refused_argument_is_one_sentence_and_exit_code_2(invented, capsys):
    invented(_raising(ConfigError("--count 3 is refused: use 4")))
    assert command_line.main(["invented"]) == 2
    assert capsys.readouterr().err == "swift-rlx: error: --count 3 is refused: use 4\n"


def test_any_other_error_of_ours_is_one_sentence_and_exit_code_1(invented, capsys):
    invented(_raising(ContractError("ms-swift lacks a part")))
    assert command_line.main(["invented"]) == 1
    assert capsys.readouterr().err == "swift-rlx: error: ms-swift lacks a part\n"


def test_a_bug_keeps_its_traceback(invented):
    invented(_raising(ZeroDivisionError("bug")))
    with pytest.raises(ZeroDivisionError, match="bug"):
        command_line.main(["invented"])


def test_an_interrupted_command_ends_with_130(invented):
    invented(_raising(KeyboardInterrupt()))
    assert command_line.main(["invented"]) == 130


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["invented", "--count", "many"], ["invented", "--colour"]]
)
def test_wrong_arguments_are_one_sentence_and_exit_code_2(invented, arguments, capsys):
    invented(lambda options: 0)
    with pytest.raises(SystemExit, match="2"):
        command_line.main(arguments)
    error = capsys.readouterr().err
    assert error.startswith("swift-rlx: error: ")
    assert error.count("\n") == 1
    assert "--help" in error


@pytest.mark.parametrize(
    ("words", "typed", "meant"),
    [
        ("store generate a.store b.jsonl --model m --temprature 1", "--temprature", "--temperatures"),
        ("store generate a.store b.jsonl --modle m", "--modle", "--model"),
        ("store compact a.store --taget_mb=8", "--taget_mb", "--target-mb"),
        ("reward serve --reward a --prot 80", "--prot", "--port"),
        ("simulate --wrokers 3", "--wrokers", "--workers"),
        ("--verison", "--verison", "--version"),
    ],
)
def test_a_misspelt_flag_of_any_command_gets_the_one_that_was_meant(words, typed, meant, capsys):
    with pytest.raises(SystemExit, match="2"):
        command_line.main(words.split())
    error = capsys.readouterr().err
    assert f"; did you mean {meant} in the place of {typed}?; see `swift-rlx" in error
    assert error.count("\n") == 1


def test_a_flag_like_no_other_gets_no_suggestion(invented, capsys):
    invented(lambda options: 0)
    with pytest.raises(SystemExit, match="2"):
        command_line.main(["invented", "--paint", "red"])
    assert "did you mean" not in capsys.readouterr().err


def test_without_a_command_the_help_is_shown_and_the_exit_code_is_2(capsys):
    assert command_line.main([]) == 2
    shown = capsys.readouterr().err
    assert all(name in shown for name in command_line.COMMANDS)


@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_every_command_has_a_help_with_an_example_of_itself(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        command_line.main([name, "--help"])
    shown = capsys.readouterr().out
    assert "example:" in shown
    assert f"    swift-rlx {name}" in shown


def test_version_prints_ours_and_those_below(capsys):
    assert command_line.main(["version"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["swift-rlx", "python", "ms-swift", "torch", "transformers", "trl", "peft"]


def test_a_reader_that_goes_away_causes_no_traceback():
    code = "import sys; from swift_rlx.cli.main import main; sys.exit(main(['version']))"
    process = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep(0.5); {code}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 141
