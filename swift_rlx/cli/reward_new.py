"""`swift-rlx reward new NAME`: a reward package that can be tested, built and published as it is."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from swift_rlx.cli.reward_template import FILES
from swift_rlx.errors import ConfigError

HELP = "start a reward package: code, test, README and metadata, ready to be published"
EXAMPLE = """\
example:
    swift-rlx reward new polite_answer
    cd polite-answer && pip install -e '.[test]' && pytest

The name is that of --reward_funcs, of the Python package, and with dashes of the distribution.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The name, and where."""
    parser.add_argument("name", help="such as polite_answer: lower-case letters, digits and _")
    parser.add_argument(
        "--directory", type=Path, default=Path(), help="to make the folder in (default: here)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the files and say what comes next."""
    folder = create_package(options.name, options.directory)
    print(f"{folder} has the reward {options.name!r}; write it in {options.name}/__init__.py, then:")
    print(f"    cd {folder} && pip install -e '.[test]' && pytest")
    print(f"    swift rlhf --rlhf_type rloo --reward_funcs {options.name} ...")
    return 0


def create_package(name: str, directory: Path) -> Path:
    """The folder of the new package. Raises `ConfigError` for a name that cannot be one or is taken."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"reward new {name!r} is refused: a name has lower-case letters, digits and single _, and begins with a"
            " letter, such as polite_answer"
        )
    if (owner := taken_by(name)) is not None:
        raise ConfigError(f"reward new {name} is refused: {owner} has that name; choose another one")
    folder = directory / name.replace("_", "-")
    if folder.exists():
        raise ConfigError(
            f"reward new {name} is refused: {folder} exists; choose another name or --directory"
        )
    values = {"NAME": name, "DISTRIBUTION": folder.name}
    for path, text in FILES.items():
        file = folder / path.replace("NAME", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text), encoding="utf-8")
    return folder


def taken_by(name: str) -> str | None:
    """What the new reward, its module or its distribution would hide, or be hidden by. Imports none of it."""
    from swift_rlx.integration.stock_reward_names import stock_reward_names
    from swift_rlx.rewards import REWARDS

    if providers := REWARDS.providers(name):
        return f"a reward of {' and '.join(map(str, providers))}"
    if name in stock_reward_names():
        return "a reward of ms-swift"
    if name in sys.stdlib_module_names:
        return "a module of Python"
    if (spec := importlib.util.find_spec(name)) is not None:
        return f"an installed module ({spec.origin or 'a folder on the path'})"
    try:
        return f"the installed distribution {distribution(name.replace('_', '-')).name}"
    except PackageNotFoundError:
        return None
