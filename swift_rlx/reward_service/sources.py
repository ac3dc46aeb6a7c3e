"""Served rewards as a worker process builds them: rewards by name, reward models, and ensembles of both."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import math
import re
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from swift_rlx.errors import ConfigError, PluginError, RewardError
from swift_rlx.reward_service.frames import Scores
from swift_rlx.reward_service.source_text import MODEL, Source, check_loader
from swift_rlx.reward_service.wire import MAX_REASON, Offer, Row
from swift_rlx.rewards import (
    REWARDS,
    AsyncCheckedReward,
    CheckedReward,
    Reward,
    checked_reward,
    resolve_reward,
)
from swift_rlx.rewards.spec import takes_args

Checked = CheckedReward | AsyncCheckedReward
Columns = dict[str, list[Any]]
ModelScorer = Callable[[Sequence[Any], Mapping[str, list[Any]]], list[float]]
"""What a loader of reward models returns: scores of completions, given the columns (`messages`) of their rows."""

Loader = Callable[[str], ModelScorer]
Finder = Callable[[str], Reward]


class ServedReward:
    """A source, built: in a worker process. Raises `ConfigError` and `PluginError`."""

    def __init__(self, source: Source, version: str, load: Loader, find: Finder = resolve_reward) -> None:
        self._members = [_Member(member, load, find) for member in source.members]
        self._joined = None if source.join is None else _joining(source.join)
        version = version or "+".join(member.version for member in self._members)
        if not re.fullmatch(r"[\w.+:-]+", version):
            raise ConfigError(
                f"the reward {source.name!r} has no version that an address can name (it says {version!r}): give one"
                " with --version"
            )
        required = dict.fromkeys(name for member in self._members for name in member.required)
        optional = dict.fromkeys(name for member in self._members for name in member.optional)
        takes_any = any(member.takes_any for member in self._members)
        self.offer = Offer(source.name, version, tuple(required), tuple(optional), takes_any)

    def score(self, rows: Sequence[Row]) -> Scores:
        """Of all rows together; where that fails, of each by itself, so that the others keep their scores."""
        try:
            return Scores(self._together(rows))
        except RewardError as error:
            if len(rows) == 1:
                return Scores([None], {0: str(error)[:MAX_REASON]})
        scores: list[float | None] = []
        faults: dict[int, str] = {}
        for number, row in enumerate(rows):
            alone = self.score([row])
            scores += alone.scores
            if alone.faults:
                faults[number] = alone.faults[0]
        return Scores(scores, faults)

    def _together(self, rows: Sequence[Row]) -> list[float | None]:
        completions = [row.completion for row in rows]
        names = dict.fromkeys(name for row in rows for name in row.columns)
        columns = {name: [row.columns.get(name) for row in rows] for name in names}
        by_member = [member.score(completions, columns) for member in self._members]
        if self._joined is None:
            return by_member[0]
        return self._joined(list(zip(*by_member, strict=True)))


def _joining(kind: str) -> Callable[[list[tuple[float | None, ...]]], list[float | None]]:
    """What makes one score of each row's, where every member scored it.

    Imported here, because it loads torch, which a service of plain rewards does without.
    """
    from swift_rlx.rewards.ensemble import parse_ensemble, reduced_rows

    ensemble = parse_ensemble("wco" if kind == "min" else kind)
    assert ensemble is not None
    return partial(reduced_rows, ensemble)


class _Member:
    """One reward or reward model."""

    def __init__(self, text: str, load: Loader, find: Finder) -> None:
        self._model: ModelScorer | None = None
        self.required: tuple[str, ...] = ("messages",)
        self.optional: tuple[str, ...] = ()
        self.takes_any = False
        if text.startswith(MODEL):
            path = Path(text.removeprefix(MODEL))
            self.version = model_digest(path)
            self._model = load(str(path))
            return
        reward = find(text)
        if reward.spec.scope == "batch":
            raise PluginError(
                f"{reward.spec.label} cannot be served: its values depend on the whole batch, and a service scores rows"
                " of several callers together"
            )
        self._reward = _built(reward)
        self._loop = asyncio.new_event_loop() if reward.spec.is_async else None
        self.version = reward.version
        self.required = reward.spec.required_columns
        self.optional, self.takes_any = reward.spec.optional_columns, reward.spec.takes_any_column

    def score(self, completions: list[Any], columns: Columns) -> list[float | None]:
        if self._model is not None:
            try:
                scores = list(self._model(completions, columns))
                if not all(map(math.isfinite, scores)):
                    raise ValueError(f"its scores are not finite: {scores}")
                return list(scores)
            except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
                raise RewardError(f"the reward model failed: {type(error).__name__}: {error}") from error
        if isinstance(self._reward, AsyncCheckedReward):
            # One loop for the worker's life: clients that the reward keeps open belong to it.
            assert self._loop is not None
            return self._loop.run_until_complete(self._reward(completions, **columns))
        return self._reward(completions, **columns)


def _built(reward: Reward) -> Checked:
    """Its class is constructed without training arguments. Raises `PluginError`, also where it reads one of them."""
    try:
        return checked_reward(reward)
    except PluginError as error:
        cause = error.__cause__
        if not (isinstance(cause, AttributeError) and cause.obj is None and takes_args(reward.target)):
            raise
        where = traceback.extract_tb(cause.__traceback__)[-1]
        if not re.search(rf"\bargs\.{cause.name}\b", where.line or ""):
            raise  # something else is None
        raise PluginError(
            f"{reward.spec.label} reads the setting --{cause.name} of a run, which a service has not: name it in the"
            " run's own --reward_funcs"
        ) from error


def reward_finder(dotted: str, own: Collection[str] = ()) -> Finder:
    """Finds what packages and plugin files offer and, by the function that `MODULE:FUNCTION` names, whatever else.

    That one is imported where a name needs it, because it may bring ms-swift along; so do `own` names of it that others
    offer, too, which it refuses. Raises as `resolve_reward`.
    """

    def find(name: str) -> Reward:
        if not dotted or (REWARDS.providers(name) and name not in own):
            return resolve_reward(name)
        module, _, function = dotted.partition(":")
        found: Reward = getattr(importlib.import_module(module), function)(name)
        return found

    return find


def find_loader(dotted: str, options: Mapping[str, str]) -> Loader:
    """The loader of reward models that `MODULE:FUNCTION` names, imported when it is used. Raises `ConfigError`."""
    check_loader(dotted)
    module, _, name = dotted.partition(":")

    def load(path: str) -> ModelScorer:
        function: Callable[..., ModelScorer] = getattr(importlib.import_module(module), name)
        return function(path, **options)

    return load


def model_digest(path: Path) -> str:
    """12 hexadecimal digits of the SHA-256 over the names and contents of a model's files: its version.

    Raises `ConfigError` where there is no model.
    """
    files = sorted(
        [*path.glob("*.json"), *path.glob("*.safetensors"), *path.glob("*.bin"), *path.glob("*.jinja")]
    )
    if not files:
        raise ConfigError(f"--reward model:{path} is refused: there is no model in that directory")
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0")
        with file.open("rb") as opened:
            while part := opened.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()[:12]
