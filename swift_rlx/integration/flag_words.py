"""Flags of ours as they were typed: argparse takes the beginning of one for the whole, without a word.

So `--max_stalenes 4` would be `--max_staleness 4`, and one letter later in the word the same slip is refused.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from swift_rlx.errors import ConfigError

PROGRAMS = (("swift", "cli", "rlhf.py"), ("swift_rlx", "__main__.py"))
"""Whose arguments are those of the run; another program that builds arguments has its own."""


def words_of_command() -> list[str]:
    """The arguments of this process, if it is `swift rlhf`; else none."""
    parts = Path(sys.argv[0]).parts
    return sys.argv[1:] if any(parts[-len(end) :] == end for end in PROGRAMS) else []


def refuse_abbreviated(words: Sequence[str], flags: Iterable[str], ours: Iterable[str]) -> None:
    """Raise ConfigError for a flag that is the beginning of one of `ours` and none of `flags`; both without dashes.

    Abbreviated flags of ms-swift are its own affair.
    """
    known, own = _with_negations(flags), _with_negations(ours)
    for word in words:
        name = word.partition("=")[0].replace("-", "_").removeprefix("__")
        if not word.startswith("--") or not name or name in known:
            continue
        meant = sorted(flag for flag in own if flag.startswith(name))
        if meant:
            raise ConfigError(
                f"{word.partition('=')[0]} is no flag of swift rlhf, but the beginning of"
                f" {' and '.join(f'--{flag}' for flag in meant)}; write the whole name"
            )


def _with_negations(names: Iterable[str]) -> set[str]:
    """A flag that is on by default has one with `no_` before it."""
    return {form for name in names for form in (name, f"no_{name}")}
