"""What decides whether a stored group may train, for all groups of a snapshot at once; nothing of their tokens.

`G` groups. About 30 bytes a group are held in memory, whatever its length.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from swift_rlx.store.chunk import Chunk
from swift_rlx.store.snapshot import Snapshot

MIXED = "several versions"
DTYPES = {
    "scored_G": "i4",
    "spread_G": "f4",
    "best_G": "f4",
    "oldest_G": "i4",
    "round_G": "i4",
    "recipe_G": "i2",
    "writer_G": "i2",
}


@dataclass(frozen=True, slots=True, eq=False)
class GroupFacts:
    """Arrays are [G].

    `scored_G`: members that may train: with a reward, and a token in the loss mask. `spread_G`: largest minus smallest
    of their rewards, `best_G`: the largest; -inf where there is none. `oldest_G`: the oldest optimizer step that made
    one of its tokens. `recipe_G`, `writer_G`: places in `recipes` and `writers`; a group with rewards of several
    recipes has `MIXED`.
    """

    scored_G: npt.NDArray[np.int32]
    spread_G: npt.NDArray[np.float32]
    best_G: npt.NDArray[np.float32]
    oldest_G: npt.NDArray[np.int32]
    round_G: npt.NDArray[np.int32]
    recipe_G: npt.NDArray[np.int16]
    writer_G: npt.NDArray[np.int16]
    recipes: tuple[str, ...]
    writers: tuple[str, ...]

    def in_order(self, order_G: npt.NDArray[np.int64]) -> GroupFacts:
        """The same of the groups with these numbers, in this order."""
        arrays = {
            one.name: getattr(self, one.name)[order_G] for one in fields(self) if one.name.endswith("_G")
        }
        return replace(self, **arrays)


def group_facts(snapshot: Snapshot) -> GroupFacts:
    """Read them, one chunk after the other."""
    recipes, writers = _Names(), _Names()
    found = [_of_chunk(chunk, recipes, writers) for chunk in snapshot.chunks]
    arrays: dict[str, Any] = {
        name: np.concatenate([np.zeros(0, dtype), *(facts[name] for facts in found)])
        for name, dtype in DTYPES.items()
    }
    return GroupFacts(**arrays, recipes=tuple(recipes), writers=tuple(writers))


class _Names(dict[str, int]):
    """Names by the number of their first appearance."""

    def codes(self, column: Any) -> npt.NDArray[np.int16]:
        """The number of each value of a string column, [rows]."""
        encoded = column.dictionary_encode()
        numbers = [self.setdefault(name, len(self)) for name in encoded.dictionary.to_pylist()]
        if len(self) > np.iinfo(np.int16).max:
            raise ValueError(f"a store has at most {np.iinfo(np.int16).max} writers and recipes of rewards")
        places: npt.NDArray[np.int32] = encoded.indices.to_numpy()
        return np.asarray(numbers, np.int16)[places]


def _of_chunk(chunk: Chunk, recipes: _Names, writers: _Names) -> dict[str, npt.NDArray[Any]]:
    begins = chunk.group_begins()
    if not len(begins):
        raise ValueError("a chunk of a store begins with a group")
    is_scored = chunk.may_train()
    scored = np.add.reduceat(is_scored, begins, dtype=np.int32)
    best = np.maximum.reduceat(np.where(is_scored, chunk.rewards, -np.inf), begins)
    worst = np.minimum.reduceat(np.where(is_scored, chunk.rewards, np.inf), begins)
    with np.errstate(invalid="ignore"):
        spread = np.where(scored > 0, best - worst, -np.inf)
    return {
        "scored_G": scored,
        "spread_G": spread.astype(np.float32),
        "best_G": best.astype(np.float32),
        "oldest_G": np.minimum.reduceat(chunk.oldest_steps(), begins),
        "round_G": chunk.fixed("round")[begins],
        "recipe_G": _recipes_of_groups(recipes.codes(row_recipes(chunk)), is_scored, begins, recipes),
        "writer_G": writers.codes(chunk.columns["writer"])[begins],
    }


def _recipes_of_groups(
    codes: npt.NDArray[np.int16],
    is_scored: npt.NDArray[np.bool_],
    begins: npt.NDArray[np.int32],
    names: _Names,
) -> npt.NDArray[np.int16]:
    """The recipe of each group's members that may train."""
    low = np.minimum.reduceat(np.where(is_scored, codes, np.iinfo(np.int16).max), begins)
    high = np.maximum.reduceat(np.where(is_scored, codes, -1), begins)
    mixed = names.setdefault(MIXED, len(names))
    return np.where(high < 0, codes[begins], np.where(low == high, low, mixed)).astype(np.int16)


def row_recipes(chunk: Chunk) -> Any:
    """What each row's reward was made of, a `pyarrow.Array` of strings: its `recipe`, or its sources `name@version`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = chunk.columns["breakdown"]
    names = pc.binary_join_element_wise(parts.values.field("name"), parts.values.field("version"), "@")
    joined = pc.binary_join(pa.ListArray.from_arrays(parts.offsets, names), "+")
    recipe = chunk.columns["recipe"]
    return pc.if_else(pc.equal(recipe, ""), joined, recipe)
