"""Asking a fresh interpreter, with invented steps; `test_doctor` asks the real ones."""

import json

import pytest

from swift_rlx.cli import probe

STEPS = "import sys; from swift_rlx.cli import probe; probe.STEPS = {steps}; probe.main({found}, sys.argv[1])"


def _ask(monkeypatch, start, **options):
    monkeypatch.setattr(probe, "START", start)
    return probe.ask(**options)


def test_answers_and_errors_come_back(monkeypatch):
    steps = "{'good': lambda: {'a': [1]}, 'bad': lambda: 1 / 0, 'after': lambda: 'still asked'}"
    found = _ask(monkeypatch, STEPS.format(steps=steps, found=True))
    assert found == probe.Probe(
        found_at_start=True,
        answers={"good": {"a": [1]}, "after": "still asked"},
        errors={"bad": "ZeroDivisionError: division by zero"},
    )


def test_a_step_that_leaves_the_interpreter_is_an_error_like_any_other(monkeypatch):
    found = _ask(monkeypatch, STEPS.format(steps="{'bad': lambda: sys.exit('no license')}", found=False))
    assert found.errors == {"bad": "SystemExit: no license"}
    assert not found.found_at_start


def test_what_a_package_prints_does_not_spoil_the_answers(monkeypatch):
    found = _ask(monkeypatch, STEPS.format(steps="{'loud': lambda: print('{') or 1}", found=True))
    assert found.answers == {"loud": 1}


@pytest.mark.parametrize(
    ("start", "error"),
    [
        ("import sys; sys.exit(3)", "it ended with exit code 3: no output"),
        ("import os; os.kill(os.getpid(), 9)", "it ended with exit code -9: no output"),
        ("import no_such_package", "exit code 1: ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_an_interpreter_that_dies_is_reported_with_its_last_words(monkeypatch, start, error):
    found = _ask(monkeypatch, start)
    assert error in found.errors["interpreter"]
    assert not found.answers


def test_an_interpreter_that_hangs_is_ended(monkeypatch):
    found = _ask(monkeypatch, "import time; time.sleep(60)", timeout_s=0.5)
    assert found.errors == {"interpreter": "it did not finish within 0.5 s"}


def test_an_answer_that_is_no_json_leaves_no_half_written_file(monkeypatch, tmp_path):
    monkeypatch.setattr(probe, "STEPS", {"odd": object})
    with pytest.raises(TypeError, match="JSON"):
        probe.main(True, str(tmp_path / "answers.json"))
    assert not (tmp_path / "answers.json").exists()


def test_the_steps_are_asked_in_an_order_that_imports_swift_first(monkeypatch, tmp_path):
    first, *_, last = probe.STEPS
    assert (first, last) == ("swift", "hook")  # after all that may fail while ms-swift is adapted
    asked = []
    steps = {name: (lambda name=name: asked.append(name)) for name in probe.STEPS}
    monkeypatch.setattr(probe, "STEPS", steps)
    probe.main(False, str(tmp_path / "answers.json"))
    assert asked == list(steps)
    assert json.loads((tmp_path / "answers.json").read_text())["found_at_start"] is False
