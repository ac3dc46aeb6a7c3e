"""`swift-rlx version`: the versions that belong into a bug report."""

import argparse
import platform

from swift_rlx import __version__
from swift_rlx.cli.environment import PACKAGES, installed_version

HELP = "print the versions of swift-rlx, Python, ms-swift and the libraries below it"
EXAMPLE = """\
example:
    swift-rlx version
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments of its own."""


def run(options: argparse.Namespace) -> int:
    """Print one `name version` per line."""
    print(f"swift-rlx {__version__}")
    print(f"python {platform.python_version()}")
    for name in PACKAGES:
        print(f"{name} {installed_version(name) or 'not installed'}")
    return 0
