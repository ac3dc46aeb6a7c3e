"""What a command of `swift-rlx store` is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class StoreCommand:
    """`example`: what stands behind its name. `run`: takes the options and returns the exit code."""

    help: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def no_arguments(parser: argparse.ArgumentParser) -> None:
    """A command that takes the store alone."""
