"""`swift-rlx simulate`: rows for the combinations that were asked for."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from swift_rlx.cli import main as command_line


def _table(capsys, *arguments):
    assert command_line.main(["simulate", *arguments]) == 0
    _, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    return rows


def test_every_worker_count_and_bound_is_a_row(capsys):
    rows = _table(
        capsys, "--steps", "20", "--workers", "1", "2", "--max-staleness", "0", "2", "--slots", "32"
    )
    assert [row[:2] for row in rows] == [["1", "0"], ["1", "2"], ["2", "0"], ["2", "2"]]


def test_constant_times_give_the_rates_that_one_computes_by_hand(capsys):
    (row,) = _table(capsys, "--sigma", "0", "--max-staleness", "0", "--steps", "20")
    assert row[2:4] == ["1384.6", "38.5%"]  # 3600 s / 2.6 s; 1 s / 2.6 s


@pytest.mark.slow
def test_flags_change_the_outcome(capsys):
    base = ("--steps", "30", "--max-staleness", "2", "--sigma", "1.0")
    known = _table(capsys, *base)
    for flag in (
        ("--weight-update", "pin"),
        ("--train-order", "admission"),
        ("--group-size", "2"),
        ("--score-s", "1.5"),
        ("--publish-s", "0.7"),
        ("--seed", "1"),
        ("--batch-groups", "16"),
        ("--batches-per-step", "4"),
        ("--slots", "40"),
        ("--slots", "40", "--reserved-share", "0.2"),
        ("--fill-the-wait",),
        ("--train-s", "2"),
        ("--generate-s", "3"),
    ):
        (seen,) = _table(capsys, *base, *flag)
        assert seen not in known, flag
        known.append(seen)


def test_filled_waits_are_counted_apart(capsys):
    arguments = (
        "--steps",
        "40",
        "--max-staleness",
        "4",
        "--sigma",
        "0",
        "--slots",
        "24",
        "--batches-per-step",
        "4",
    )
    (plain,) = _table(capsys, *arguments)
    (filled,) = _table(capsys, *arguments, "--fill_the_wait")
    assert len(filled) == len(plain) + 3
    assert float(filled[-3]) > 0
    assert float(filled[3].rstrip("%")) > float(plain[3].rstrip("%"))  # the trainer is busier


@pytest.mark.slow
def test_the_comparison_prints_every_rule_in_six_cases(capsys):
    assert command_line.main(["simulate", "--table", "scheduling", "--steps", "8", "--seeds", "1"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("train ") == 6
    assert shown.count("wait (verl)") == shown.count("swift-rlx, pin") == 6


@pytest.mark.parametrize(
    ("flag", "value", "sentence"),
    [
        ("--train-s", "0", "--train-s 0 is refused: it must be above 0 and at most 1e+06"),
        ("--generate-s", "nan", "--generate-s nan is refused: it must be above 0 and at most 1e+06"),
        ("--score-s", "-1", "--score-s -1 is refused: it must be from 0 to 1e+06"),
        ("--workers", "0", "--workers 0 is refused: it must be at least 1"),
        ("--slots", "-3", "--slots -3 is refused: use at least 1"),
        ("--batch-groups", "0", "--batch-groups 0 is refused: it must be at least 1"),
        ("--group-size", "0", "--group-size 0 is refused: it must be at least 1"),
        ("--max-staleness", "-1", "--max-staleness -1 is refused: it must be at least 0"),
        ("--reserved-share", "1", "--reserved-share 1 is refused: use 0 up to less than 1"),
        (
            "--batches-per-step",
            "3",
            "--batches-per-step 3 is refused: it has to divide the 32 groups of a step",
        ),
        ("--steps", "2", "--steps 2 is refused: it must exceed the 2 of the warm-up"),
        ("--workers", "100000", "--workers 100000 is refused: it must be at most 1000"),
        (
            "--steps",
            "100000000",
            "--steps 100000000 is refused: with 1 worker(s) at most 198,449 answers are"
            " simulated, 32 x 1 of them a step, up to 2 steps ahead; use at most 6199",
        ),
        (
            "--group-size",
            "200",
            "--steps 300 is refused: with 1 worker(s) at most 198,449 answers are"
            " simulated, 32 x 200 of them a step, up to 2 steps ahead; use at most 29",
        ),
        (
            "--group-size",
            "10000",
            "--group-size 10000 is refused: with 1 worker(s) at most 198,449 answers are"
            " simulated, 32 x 10000 of them a step, up to 2 steps ahead; lower it, or --batch-groups",
        ),
        (
            "--generate-s",
            "1e6",
            "--generate-s 1e+06 is refused: with --sigma 0.5 an answer takes 1.13315e+06 s on average, and at most"
            " 10000 is simulated; use at most 8.82e+03",
        ),
    ],
)
def test_a_setting_without_sense_is_one_sentence_that_begins_with_its_flag(capsys, flag, value, sentence):
    assert command_line.main(["simulate", flag, value]) == 2
    said = capsys.readouterr()
    assert said.err == f"swift-rlx: error: {sentence}\n"
    assert not said.out


@pytest.mark.parametrize(("seeds", "limit"), [("0", "at least 1"), ("100000", "at most 100")])
def test_a_table_of_no_seeds_and_of_too_many_is_refused(seeds, limit, capsys):
    assert command_line.main(["simulate", "--table", "scheduling", "--seeds", seeds]) == 2
    assert capsys.readouterr().err == f"swift-rlx: error: --seeds {seeds} is refused: use {limit}\n"


def test_a_table_of_too_many_steps_is_refused_by_the_name_of_the_flag(capsys):
    assert command_line.main(["simulate", "--table", "scheduling", "--steps", "100000000"]) == 2
    assert capsys.readouterr().err.startswith("swift-rlx: error: --steps 100000000 is refused: with 1 w")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--table", "scheduling", "--train-s", "2"],
            "--train-s 2.0 is refused: .* takes --steps and --seeds",
        ),
        (["--table", "scheduling", "--max-staleness", "1", "3"], "--max-staleness 1 3 is refused"),
        (["--table", "scheduling", "--seed", "4"], "--seed 4 is refused"),
        (["--seeds", "5"], "--seeds 5 is refused: it would change nothing; use --seed, or --table"),
    ],
)
def test_a_flag_that_would_change_nothing_is_refused(arguments, message, capsys):
    assert command_line.main(["simulate", *arguments]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_simulator_loads_no_torch():
    code = (
        "import sys; from swift_rlx.cli.main import main;"
        "main(['simulate', '--steps', '5', '--max-staleness', '1']); sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
