"""Flags of ours of which only the beginning was typed."""

import sys
from dataclasses import fields

import pytest

from swift_rlx.errors import ConfigError
from swift_rlx.integration.fields import FIELD_NAMES
from swift_rlx.integration.flag_words import refuse_abbreviated, words_of_command

FLAGS = (*FIELD_NAMES, "model", "max_length", "rlhf_type", "rollout_importance_sampling_mode")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--max_stalenes", "--max_staleness"),
        ("--max-stalenes=4", "--max_staleness"),
        ("--max_s", "--max_staleness and --max_store_age"),
        ("--rollout_w", "--rollout_workers"),
        ("--no_async", "--no_async_rollout"),
    ],
)
def test_the_beginning_of_a_flag_is_refused_with_its_whole_name(word: str, meant: str) -> None:
    with pytest.raises(
        ConfigError,
        match=f"^{word.partition('=')[0]} is no flag of swift rlhf, but the beginning of {meant}; write the whole",
    ):
        refuse_abbreviated(["--model", "m", word, "4"], FLAGS, FIELD_NAMES)


@pytest.mark.parametrize(
    "words",
    [
        ["--max_staleness", "4"],
        ["--max-staleness=4"],
        ["--no_async_rollout"],
        ["--mod", "m"],
        ["--unknown", "-1", "--", "--"],
        ["max_stalenes"],
        ["--rollout_importance_sampling_mode", "x"],
    ],
)
def test_whole_flags_and_those_of_ms_swift_are_left_alone(words: list[str]) -> None:
    refuse_abbreviated(words, FLAGS, FIELD_NAMES)


@pytest.mark.parametrize(
    ("program", "is_ours"),
    [
        ("/x/site-packages/swift/cli/rlhf.py", True),
        ("/x/swift_rlx/__main__.py", True),
        ("/x/train.py", False),
        ("/x/cli/rlhf.py", False),
        ("-c", False),
        ("", False),
    ],
)
def test_the_words_of_another_program_are_its_own(
    program: str, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "--max_stalenes", "4"])
    assert words_of_command() == (["--max_stalenes", "4"] if is_ours else [])


def test_the_command_refuses_it_and_knows_all_of_its_own_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    from swift import RLHFArguments
    from swift.utils import parse_args

    words = ["--rlhf_type", "rloo", "--reward_funcs", "format", "--dataset", "x.jsonl", "--max_stalenes", "4"]
    monkeypatch.setattr(sys, "argv", ["/x/swift/cli/rlhf.py", *words])
    with pytest.raises(ConfigError, match="--max_stalenes is no flag of swift rlhf, but the beginning of"):
        parse_args(RLHFArguments)
    assert {each.name for each in fields(RLHFArguments)} > {*FIELD_NAMES}
