"""What `swift-rlx reward serve --reward` takes. The service itself reads it here, and never imports a reward.

comment_bonus                       a reward by its name, from a package or a file of `--external-plugins`
helpful=model:/models/rm_v3         a reward model of transformers, under the name `helpful`
safe=wco(model:/a, model:/b)        an ensemble: mean, wco (also min: the lowest), uwo or uwo:C (mean - C x variance,
                                    0.5 if not said), as `--reward_ensemble`; of names, models, or both
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from swift_rlx.errors import ConfigError

MODEL = "model:"
JOINS = ("mean", "wco", "min", "uwo", "uwo:C")
_JOIN = re.compile(r"mean|wco|min|uwo(:\d+(\.\d+)?)?")
_ENSEMBLE = re.compile(r"([^(]*)\((.*)\)")


@dataclass(frozen=True)
class Source:
    """A served name and its members; `join`: the kind of ensemble that they are, None for a single member."""

    name: str
    members: tuple[str, ...]
    join: str | None = None


def parse_source(text: str) -> Source:
    """Raises `ConfigError`."""
    name, equals, rest = text.partition("=")
    if not equals:
        name = rest = text
    _check_brackets(text, rest)
    ensemble = None if rest.startswith(MODEL) else _ENSEMBLE.fullmatch(rest.strip())
    join, listed = (ensemble[1], ensemble[2].split(",")) if ensemble else (None, [rest])
    members = tuple(member.strip() for member in listed)
    is_named = bool(re.fullmatch(r"[\w.-]+", name)) and (equals or not (ensemble or rest.startswith(MODEL)))
    if not is_named or not all(members) or (join is not None and not _JOIN.fullmatch(join)):
        raise ConfigError(
            f"--reward {text!r} is refused: give a reward's name, NAME=model:PATH, or NAME=JOIN(MEMBER, MEMBER) with"
            f" JOIN one of {', '.join(JOINS)}"
        )
    return Source(name, members, join)


def _check_brackets(text: str, rest: str) -> None:
    """An ensemble has one pair around its members; the path of a model may have any. Raises `ConfigError`."""
    join, _, listed = rest.partition("(")
    if MODEL in join:
        return
    members = ",".join(
        "" if one.strip().startswith(MODEL) else one for one in listed.rpartition(")")[0].split(",")
    )
    is_open = "(" in rest
    if is_open and not rest.rstrip().endswith(")"):
        fault = f"the ( at character {text.index('(') + 1} is not closed: end it with )"
    elif not is_open and ")" in rest:
        fault = f"the ) at character {text.index(')') + 1} was not opened: write JOIN( before the members"
    elif "(" in members or ")" in members:
        fault = "an ensemble has one pair of brackets: its members are names and model:PATH, and no ensembles"
    else:
        return
    raise ConfigError(f"--reward {text!r} is refused: {fault}, as in safe=wco(a, b)")


def check_loader(dotted: str) -> None:
    """Raises `ConfigError` for what cannot name a loader of reward models."""
    if not all(dotted.partition(":")):
        raise ConfigError(
            f"--loader {dotted!r} is refused: give MODULE:FUNCTION, which loads a reward model from a path"
        )
