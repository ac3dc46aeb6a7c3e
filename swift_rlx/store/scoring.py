"""Gives sealed rows new rewards: values of sources, put on one scale over the whole store, as overlays.

values   of each source, for every row: stored ones of the wanted version, others by calling `evaluate`
moments  of each source over the whole store, joined shard by shard
overlay  of every shard: the sources' raw values, the reward, and its recipe; all published at once
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from swift_rlx.store.chunk import Chunk
from swift_rlx.store.moments import FloatArray, Moments
from swift_rlx.store.overlays import publish_overlays, write_overlay
from swift_rlx.store.recipe import Recipe, Scale, Source
from swift_rlx.store.sealed_shard import SealedShard
from swift_rlx.store.snapshot import Snapshot
from swift_rlx.store.trajectory_store import TrajectoryStore

REWARD_COLUMNS = ("reward", "breakdown", "recipe")


Part = Mapping[str, Any]
"""Of a breakdown: `name`, `value` and `version`."""


@dataclass(frozen=True, slots=True)
class ToScore:
    """Rows that a source has to score: numbers in the snapshot; rows of one group stand together."""

    source: Source
    rows: tuple[int, ...]


Evaluate = Callable[[ToScore], Sequence[float | None]]
"""The value of each row; None: unscored."""


@dataclass(frozen=True, slots=True)
class ScoredStore:
    """What scoring did. `evaluated` and `moments`: of each source."""

    recipe: str
    rows: int
    unscored: int
    evaluated: Mapping[str, int]
    moments: Mapping[str, Moments]


def score_store(
    store: TrajectoryStore,
    snapshot: Snapshot,
    recipe: Recipe,
    evaluate: Mapping[str, Evaluate],
    *,
    again: bool,
) -> ScoredStore:
    """Give every row the reward of this recipe.

    `evaluate`: of the sources that can be computed; others have the values that are stored. `again`: also where a value
    of the wanted version is stored. 8 bytes of memory a row and source. Raises `StoreError`, and what `evaluate`
    raises; then nothing is changed.
    """
    values: dict[str, FloatArray] = {}
    evaluated = dict.fromkeys(evaluate, 0)
    for source in recipe.sources:
        values[source.name] = stored = stored_values(snapshot, source)
        if source.name in evaluate:
            wanted = _rows_to_score(snapshot, stored, source, again=again)
            given = evaluate[source.name](ToScore(source, wanted)) if wanted else ()
            stored[list(wanted)] = [np.nan if value is None else value for value in given]
            evaluated[source.name] = len(wanted)
    moments = {name: _moments(snapshot, found) for name, found in values.items()}
    rewards = _rewards(snapshot, recipe, values, moments)
    _publish(store, snapshot, recipe, values, rewards)
    unscored = int(np.isnan(rewards).sum())
    return ScoredStore(str(recipe), snapshot.num_rows, unscored, evaluated, moments)


def stored_values(snapshot: Snapshot, source: Source) -> FloatArray:
    """The stored value of a source for each row, [rows]; NaN where there is none of this version."""
    found = [_of_chunk(chunk, source, np.nan) for chunk in snapshot.chunks]
    return np.concatenate([np.zeros(0), *found])


def parts_with(parts: Sequence[Part], source: Source, value: float | None) -> list[Part]:
    """A row's breakdown with the value of one source in the place of its old one."""
    new = {"name": source.name, "value": value, "version": source.version}
    if any(part["name"] == source.name for part in parts):
        return [new if part["name"] == source.name else part for part in parts]
    return [*parts, new]


def _of_chunk(chunk: Chunk, source: Source, missing: float) -> FloatArray:
    import pyarrow.compute as pc

    column = chunk.columns["breakdown"]
    parts = column.values
    is_it = pc.and_(
        pc.equal(parts.field("name"), source.name), pc.equal(parts.field("version"), source.version)
    )
    places = np.flatnonzero(np.asarray(is_it.to_numpy(zero_copy_only=False), np.bool_))
    rows = np.searchsorted(np.asarray(column.offsets), places, "right") - 1
    values = np.full(chunk.num_rows, missing)
    values[rows] = parts.field("value").to_numpy(zero_copy_only=False)[places]
    return values


def _is_stored(snapshot: Snapshot, source: Source) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows this version of the source was asked about, also where it gave no value."""
    none = [np.zeros(0)]
    marks = [_of_chunk(chunk, source, np.inf) for chunk in snapshot.chunks]
    return ~np.isposinf(np.concatenate(none + marks))


def _rows_to_score(snapshot: Snapshot, stored: FloatArray, source: Source, *, again: bool) -> tuple[int, ...]:
    """All rows of the groups in which one has no value of the version: a reward may compare a group's answers."""
    if again:
        return tuple(range(snapshot.num_rows))
    is_due = ~_is_stored(snapshot, source)
    if not len(is_due):
        return ()
    due = np.logical_or.reduceat(is_due, snapshot.group_begins[:-1])
    return tuple(np.flatnonzero(np.repeat(due, np.diff(snapshot.group_begins))).tolist())


def _moments(snapshot: Snapshot, values: FloatArray) -> Moments:
    total = Moments()
    for begin, end in zip(snapshot.chunk_begins[:-1], snapshot.chunk_begins[1:], strict=True):
        total = total.joined(Moments.of(values[begin:end]))
    return total


def _rewards(
    snapshot: Snapshot, recipe: Recipe, values: Mapping[str, FloatArray], moments: Mapping[str, Moments]
) -> FloatArray:
    if recipe.scale is not Scale.QUERY:
        return recipe.rewards(values, moments)
    rewards = np.full(snapshot.num_rows, np.nan)
    for rows in _rows_by_prompt(snapshot):
        own = {name: found[rows] for name, found in values.items()}
        rewards[rows] = recipe.rewards(own, {name: Moments.of(found) for name, found in own.items()})
    return rewards


def _rows_by_prompt(snapshot: Snapshot) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The rows of each prompt, in all groups that answer it."""
    prompts = np.concatenate(
        [np.zeros(0, np.uint64), *(chunk.fixed("prompt_id") for chunk in snapshot.chunks)]
    )
    order = np.argsort(prompts, kind="stable")
    ends = np.flatnonzero(np.diff(prompts[order])) + 1
    return [rows for rows in np.split(order, ends) if len(rows)]


def _publish(
    store: TrajectoryStore,
    snapshot: Snapshot,
    recipe: Recipe,
    values: Mapping[str, FloatArray],
    rewards: FloatArray,
) -> None:
    entries, begin = {}, 0
    for shard in snapshot.shards:
        first = begin

        def columns(shard: SealedShard, number: int, first: int = first) -> dict[str, list[Any]]:
            chunk = shard.chunks[number]
            start = first + sum(one.num_rows for one in shard.chunks[:number])
            rows = slice(start, start + chunk.num_rows)
            found = {name: one[rows] for name, one in values.items()}
            breakdown = chunk.columns["breakdown"].to_pylist()
            for source in recipe.sources:
                given = [_or_none(value) for value in found[source.name]]
                breakdown = [
                    parts_with(parts, source, value) for parts, value in zip(breakdown, given, strict=True)
                ]
            reward = [_or_none(value) for value in rewards[rows]]
            return {"reward": reward, "breakdown": breakdown, "recipe": [str(recipe)] * chunk.num_rows}

        entries[shard.entry] = write_overlay(store.place, shard, REWARD_COLUMNS, columns)
        begin += shard.entry.num_rows
    publish_overlays(store.log, entries)


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
