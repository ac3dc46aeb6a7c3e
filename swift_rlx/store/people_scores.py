"""Scores by people, added to sealed rows by trajectory id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swift_rlx.store.group_facts import row_recipes
from swift_rlx.store.overlays import publish_overlays, shards_with, write_overlay
from swift_rlx.store.recipe import Source
from swift_rlx.store.scoring import parts_with
from swift_rlx.store.sealed_shard import SealedShard
from swift_rlx.store.trajectory_store import TrajectoryStore


def add_scores(store: TrajectoryStore, source: Source, scores: Mapping[int, float]) -> None:
    """Note the score of each row id as a value of `source`. Rewards stay: `score_store` makes new ones from it.

    Raises `StoreError` for an id that no row has; then nothing is changed.
    """
    snapshot = store.snapshot()
    scored = shards_with(snapshot, scores)

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
