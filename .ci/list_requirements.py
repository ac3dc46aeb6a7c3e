"""Write what installed packages require, as a requirements file, without the packages that are left out.

    python list_requirements.py FILE PACKAGE... --without NAME...

pip itself can only take all requirements of a package or none.
"""

import argparse
import re
from importlib.metadata import requires
from pathlib import Path


def kept(requirements: list[str], left_out: list[str]) -> list[str]:
    """Those of no extra whose name is not left out."""
    names = {normalized(name) for name in left_out}
    plain = [line for line in requirements if not re.search(r"\bextra\s*==", line)]
    return [line for line in plain if normalized(re.match(r"[\w.-]+", line)[0]) not in names]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write what installed packages require.")
    parser.add_argument("file", type=Path)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--without", nargs="*", default=[])
    given = parser.parse_args()
    lines = [line for package in given.packages for line in kept(requires(package) or [], given.without)]
    given.file.write_text("".join(f"{line}\n" for line in lines))
