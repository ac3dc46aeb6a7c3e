"""Scores by people, added to sealed rows by trajectory id."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from swift_rlx.errors import StoreError
from swift_rlx.store.group_facts import row_recipes
from swift_rlx.store.overlays import publish_overlays, write_overlay
from swift_rlx.store.recipe import Source
from swift_rlx.store.scoring import parts_with
from swift_rlx.store.sealed_shard import SealedShard
from swift_rlx.store.stored_group import as_text
from swift_rlx.store.trajectory_store import TrajectoryStore

MAX_NAMED = 3


def add_scores(store: TrajectoryStore, source: Source, scores: Mapping[int, float]) -> None:
    """Note the score of each row id as a value of `source`. Rewards stay: `score_store` makes new ones from it.

    Raises `StoreError` for an id that no row has; then nothing is changed.
    """
    snapshot = store.snapshot()
    unknown = set(scores)
    scored = []
    for shard in snapshot.shards:
        if own := unknown.intersection(_ids(shard)):
            unknown -= own
            scored.append(shard)
    if unknown:
        named = ", ".join(as_text(row_id) for row_id in sorted(unknown)[:MAX_NAMED])
        raise StoreError(
            f"{len(unknown)} trajectory ids are not in the store '{snapshot.url}', such as {named}; import the scores"
            " into the store that they were exported from"
        )

    def columns(shard: SealedShard, number: int) -> dict[str, list[Any]]:
        chunk = shard.chunks[number]
        breakdown = [
            parts_with(parts, source, scores[row_id]) if row_id in scores else parts
            for row_id, parts in zip(
                chunk.row_ids.tolist(), chunk.columns["breakdown"].to_pylist(), strict=True
            )
        ]
        return {"breakdown": breakdown, "recipe": row_recipes(chunk).to_pylist()}

    names = ("breakdown", "recipe")
    publish_overlays(
        store.log, {shard.entry: write_overlay(store.place, shard, names, columns) for shard in scored}
    )


def _ids(shard: SealedShard) -> Iterator[int]:
    return itertools.chain.from_iterable(chunk.row_ids.tolist() for chunk in shard.chunks)
