"""Calls rewards for rows of a store, in this process or in several."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any

from swift_rlx.errors import PluginError

if TYPE_CHECKING:
    from swift_rlx.rewards import OnError
    from swift_rlx.store import Snapshot
    from swift_rlx.store.scoring import Evaluate, ToScore

BLOCK_ROWS = 256


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """`workers`: processes, 1: this one. `plugins`: files that register rewards. `on_error`: as in training."""

    on_error: OnError
    workers: int = 1
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Answers of whole groups, as a reward gets them: one value a row in each column."""

    completions: list[str]
    columns: dict[str, list[Any]]


class RewardPool:
    """Rewards by name. `only_offered`: leave names out that nobody offers. Raises `PluginError`, `ConfigError`.

    A call has whole groups, about `BLOCK_ROWS` rows; a reward that looks at a whole batch sees these as the batch.
    """

    def __init__(self, names: Sequence[str], options: PoolOptions, *, only_offered: bool = False) -> None:
        self._options = options
        self._rewards: dict[str, Any] = {}
        for name in names:
            try:
                self._rewards |= _built((name,), options)
            except PluginError:
                if not only_offered:
                    raise
        self._pool: ProcessPoolExecutor | None = None
        if options.workers > 1 and self._rewards:
            context = multiprocessing.get_context("spawn")
            setup = (tuple(self._rewards), options)
            self._pool = ProcessPoolExecutor(options.workers, context, _set_up, setup)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the rewards that it calls."""
        return tuple(self._rewards)

    def version(self, name: str) -> str:
        """Of a reward, as training stores it."""
        return self._rewards[name].spec.version or ""

    def evaluators(self, snapshot: Snapshot) -> dict[str, Evaluate]:
        """What calls each reward for rows of this snapshot."""
        return {name: functools.partial(self._evaluate, snapshot) for name in self._rewards}

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _evaluate(self, snapshot: Snapshot, wanted: ToScore) -> list[float | None]:
        name = wanted.source.name
        blocks = _blocks(snapshot, wanted.rows)
        if self._pool is None:
            return [value for block in blocks for value in _called(self._rewards[name], block)]
        tasks = ((name, block) for block in blocks)
        return [value for values in self._pool.map(_score_block, tasks) for value in values]


def _blocks(snapshot: Snapshot, rows: Sequence[int]) -> Iterator[Block]:
    """The rows, which are those of whole groups, in their order."""
    import numpy as np

    numbers = np.unique(np.searchsorted(snapshot.group_begins, np.asarray(rows, np.int64), "right") - 1)
    collected: list[dict[str, Any]] = []
    for number in numbers.tolist():
        collected += _rows_of(snapshot, number)
        if len(collected) >= BLOCK_ROWS:
            yield _as_block(collected)
            collected = []
    if collected:
        yield _as_block(collected)


def _rows_of(snapshot: Snapshot, number: int) -> Iterator[dict[str, Any]]:
    stored = snapshot.group(number)
    columns = stored.group.prompt.columns
    messages = columns.get("messages")
    for text, one in zip(stored.texts or [""] * len(stored.group.members), stored.group.members, strict=True):
        asked = list(messages) if isinstance(messages, list) else []
        yield {
            **columns,
            "completion": text,
            "messages": [*asked, {"role": "assistant", "content": text}],
            "finish_reason": one.completion.finish_reason.value,
            "is_truncated": one.completion.finish_reason.value == "length",
            "response_token_ids": one.completion.token_ids.tolist(),
        }


def _as_block(rows: Sequence[dict[str, Any]]) -> Block:
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names if name != "completion"}
    return Block([row["completion"] for row in rows], columns)


def _built(names: Sequence[str], options: PoolOptions) -> dict[str, Any]:
    """The rewards, after the files that register them were imported."""
    from swift_rlx.integration.reward_names import build_rewards, import_reward_files

    import_reward_files(options.plugins)
    args = SimpleNamespace(reward_on_error=str(options.on_error))
    return {reward.name: reward for reward in build_rewards(list(names), args, options.on_error)}


def _called(reward: Any, block: Block) -> list[float | None]:
    found = reward(block.completions, **block.columns)
    return list(asyncio.run(found) if asyncio.iscoroutine(found) else found)


_own: dict[str, Any] = {}
"""The rewards of a worker process."""


def _set_up(names: Sequence[str], options: PoolOptions) -> None:
    _own.update(_built(names, options))


def _score_block(task: tuple[str, Block]) -> list[float | None]:
    name, block = task
    return _called(_own[name], block)
