"""Flags in messages are written as a user types them: they are flags of `swift rlhf`, of our commands, or of others."""

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from swift.arguments import RLHFArguments

import swift_rlx
from swift_rlx.cli.main import build_parser

PACKAGE = Path(swift_rlx.__file__).parent
FLAG = re.compile(r"(?<![\w/<-])--[a-z][a-z0-9]*(?:[_-][a-z0-9]+)*(?![\w-])")
OF_OTHERS = {
    *("--no-deps", "--force-reinstall", "--target"),  # pip
    "--shm-size",  # docker
    *(
        "--enable-scale-out",
        "--enable-lora",
        "--max-lora-rank",
        "--max-loras",
        "--max-cpu-loras",
        "--logprobs-mode",
    ),  # vllm
    *("--weight-transfer-config", "--max-model-len"),
    *("--model-path", "--lora-target-modules", "--api-key"),  # sglang
}


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from options_of(sub)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of the strings of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def test_every_flag_in_a_message_is_one_that_can_be_typed() -> None:
    known = (
        {f"--{field.name}" for field in fields(RLHFArguments)} | set(options_of(build_parser())) | OF_OTHERS
    )
    wrong = {
        f"{path.relative_to(PACKAGE)}:{line} {flag}"
        for path in PACKAGE.rglob("*.py")
        for line, text in texts(path)
        for flag in FLAG.findall(text)
        if flag not in known
    }
    assert wrong == set()


def test_our_commands_take_their_flags_in_the_spelling_of_swift_rlhf_too() -> None:
    """Messages of what runs and commands share name a flag as `swift rlhf` spells it."""
    build = build_parser()
    serve = ["reward", "serve", "--reward", "a"]
    dashed = build.parse_args([*serve, "--external-plugins", "a_b.py", "--batch-limit-s=3"])
    typed = build.parse_args([*serve, "--external_plugins", "a_b.py", "--batch_limit_s=3"])
    assert vars(typed) == vars(dashed)
    assert typed.external_plugins == ["a_b.py"]
    assert build.parse_args(["store", "score", "x_y", "--reward_on_error", "none"]).reward_on_error == "none"
