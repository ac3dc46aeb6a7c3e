"""What a command of `swift-rlx store` is, and the arguments that several of them have."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_rlx.errors import ConfigError


@dataclass(frozen=True)
class StoreCommand:
    """`example`: what stands behind its name. `run`: takes the options and returns the exit code."""

    help: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def no_arguments(parser: argparse.ArgumentParser) -> None:
    """A command that takes the store alone."""


def model_arguments(parser: argparse.ArgumentParser, of: str, *, required: bool = False) -> None:
    """Which model, where a command needs one; `of`: what it is for, behind "id or directory of the model"."""
    add = parser.add_argument
    add("--model", required=required, help=f"id or directory of the model {of}")
    add("--template", help="ms-swift's name of its template, where that is not known from the model")
    add("--model-type", help="ms-swift's name of its kind, where several fit")
    add("--use-hf", action="store_true", help="take the model from Hugging Face, not from ModelScope")


def chosen_model(options: argparse.Namespace) -> dict[str, Any]:
    """What `model_arguments` took, by the names of what loads it. Raises `ConfigError` for a missing folder."""
    from swift_rlx.integration.model_path import refuse_missing_folder

    refuse_missing_folder("--model", options.model)
    return {
        "model": options.model,
        "template": options.template,
        "model_type": options.model_type,
        "use_hf": options.use_hf or None,
    }


def file_arguments(parser: argparse.ArgumentParser, *, holds: str, meanings: str) -> None:
    """The files that a store is filled from; `meanings`: what a column may mean."""
    add = parser.add_argument
    add("files", nargs="+", type=Path, help=f"{holds}: jsonl, parquet or csv")
    add(
        "--columns",
        nargs="+",
        default=[],
        metavar="MEANING=NAME",
        help=f"what columns of other names are: {meanings}",
    )


def named_columns(given: Iterable[str]) -> dict[str, str]:
    """The name of a column by its meaning, of `--columns MEANING=NAME ...`. Raises `ConfigError`."""
    names = {}
    for one in given:
        meaning, is_there, name = one.partition("=")
        if not is_there or not meaning or not name:
            raise ConfigError(f"--columns {one} is refused: write MEANING=NAME, such as prompt=question")
        names[meaning] = name
    return names
