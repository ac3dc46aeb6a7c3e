"""The groups of a snapshot that a run on stored groups alone trains: which they are, and what they have.

They are in the order of their ids, which no compaction changes, and so does the digest of them all.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from swift_rlx.errors import StoreError
from swift_rlx.store.chunk import Chunk
from swift_rlx.store.group_facts import group_facts
from swift_rlx.store.moments import FloatArray, Moments, zscore
from swift_rlx.store.recipe import Source, parse_sources
from swift_rlx.store.scoring import stored_values
from swift_rlx.store.selection import GroupFilter, Selection
from swift_rlx.store.snapshot import Snapshot
from swift_rlx.store.stored_group import StoredGroup
from swift_rlx.types import RewardPart

LongArray = npt.NDArray[np.int64]


class TrainableGroups:
    """See the module. Raises `StoreError` as `Selection` does, and where no group is left.

    `ids`, `sizes`: of the groups, [G]; a size counts the members that may train. `left_out`: groups that the filter did
    not let pass, by the first reason. `recipe`: what all rewards are made of.
    """

    def __init__(self, snapshot: Snapshot, wanted: GroupFilter) -> None:
        self.snapshot = snapshot
        self.sealed = wanted.sealed
        ids = snapshot.group_ids()
        by_id = np.argsort(ids, kind="stable")
        facts = group_facts(snapshot).in_order(by_id)
        selection = Selection(facts, wanted, snapshot.url)
        passes = selection.at(0)
        self.left_out: Counter[str] = selection.left_out
        self._numbers: LongArray = by_id[passes]
        self.ids: npt.NDArray[np.uint64] = ids[self._numbers]
        self.sizes: LongArray = facts.scored_G[passes].astype(np.int64)
        if not len(self.ids):
            raise StoreError(
                f"the store '{snapshot.url}' has no group that may train: {_reasons(self.left_out)}"
            )
        self.recipe: str = facts.recipes[int(facts.recipe_G[passes][0])]

    @property
    def digest(self) -> str:
        """Of the groups' ids."""
        return hashlib.blake2b(self.ids.tobytes(), digest_size=8).hexdigest()

    @property
    def num_rows(self) -> int:
        """Completions that may train."""
        return int(self.sizes.sum())

    def group(self, group_id: int) -> StoredGroup:
        """Without texts. Raises `KeyError` for an id that is none of these."""
        return self.snapshot.group(self._number(group_id), with_texts=False)

    def row_ids(self, group_id: int) -> list[int]:
        """Of all members of the group."""
        return [row.row_id for row in self.snapshot.rows(self.snapshot.rows_of(self._number(group_id)))]

    def prompt_columns(self) -> Iterator[tuple[int, str | None]]:
        """Id of each group, and the columns of its prompt as JSON; in the order of the files, to read each once."""
        places = np.full(self.snapshot.num_groups, -1, np.int64)
        places[self._numbers] = np.arange(len(self._numbers))
        for place, columns in zip(places.tolist(), self.snapshot.prompt_columns(), strict=True):
            if place >= 0:
                yield int(self.ids[place]), columns

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each member's completion and its prompt, [2, members]: of scored and of other members."""
        answers = self._of_rows([np.diff(chunk.lists("token_ids")[0]) for chunk in self.snapshot.chunks])
        prompts = [_prompt_lengths(chunk) for chunk in self.snapshot.chunks]
        return np.stack([answers, self._of_rows(prompts)]).astype(np.int64)

    def num_without_logprobs(self) -> int:
        """Members that may train, and whose log-probs are missing."""
        missing = [
            chunk.columns["logprobs"].is_null().to_numpy(zero_copy_only=False)
            for chunk in self.snapshot.chunks
        ]
        may_train = [chunk.may_train() for chunk in self.snapshot.chunks]
        return int((self._of_rows(missing) & self._of_rows(may_train)).sum())

    def logprobs_by(self) -> set[str]:
        """What computed log-probs that had been missing."""
        import pyarrow.compute as pc

        found = {
            name
            for chunk in self.snapshot.chunks
            for name in pc.unique(chunk.columns["logprobs_by"]).to_pylist()
        }
        return found - {"", None}

    def _number(self, group_id: int) -> int:
        place = int(np.searchsorted(self.ids, np.uint64(group_id)))
        if place == len(self.ids) or int(self.ids[place]) != group_id:
            raise KeyError(group_id)
        return int(self._numbers[place])

    def _of_rows(self, by_chunk: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Values of all rows, chunk by chunk: those of the rows of these groups."""
        belongs = np.zeros(self.snapshot.num_groups, np.bool_)
        belongs[self._numbers] = True
        return np.concatenate(by_chunk)[np.repeat(belongs, np.diff(self.snapshot.group_begins))]


class SourceScores:
    """What each source of a recipe says of a completion, as z-score over the store: one scale for all of them.

    A source with a negative weight counts downwards; one with weight 0 does not count. Where a recipe names no source
    the reward is the only one.
    """

    def __init__(self, snapshot: Snapshot, recipe: str) -> None:
        self._sources = [source for source in sources_of(recipe) if source.weight]
        self._moments: Mapping[Source, Moments] = {
            source: Moments.of(stored_values(snapshot, source)) for source in self._sources
        }

    @property
    def num_sources(self) -> int:
        """Columns of `of`."""
        return max(len(self._sources), 1)

    def of(self, reward: float, breakdown: Sequence[RewardPart]) -> list[float]:
        """The score by each source, NaN where it has none."""
        if not self._sources:
            return [reward]
        values = {(part.name, part.version): part.value for part in breakdown}
        found = [(source, values.get((source.name, source.version))) for source in self._sources]
        return [
            np.nan if value is None else float(np.sign(source.weight) * _scaled(value, self._moments[source]))
            for source, value in found
        ]


def sources_of(recipe: str) -> tuple[Source, ...]:
    """The sources of a recipe, also of one on a run's own scale (`zscore of the run: 1*accuracy@1.0`), or of rewards
    without weights, `accuracy@1.0+length@2`; none of other text."""
    if sources := parse_sources(recipe.partition(": ")[2]):
        return sources
    parts = [part.partition("@") for part in recipe.split("+")]
    return (
        tuple(Source(name, version) for name, _, version in parts)
        if all(mark for _, mark, _ in parts)
        else ()
    )


def _prompt_lengths(chunk: Chunk) -> npt.NDArray[np.int64]:
    """Of the prompt of each row, [num_rows]."""
    begins = chunk.group_begins()
    lengths = np.diff(chunk.lists("prompt_ids")[0])[begins]
    return np.repeat(lengths, np.diff([*begins, chunk.num_rows])).astype(np.int64)


def _scaled(value: float, moments: Moments) -> FloatArray:
    return zscore(np.asarray(value), moments)


def _reasons(left_out: Counter[str]) -> str:
    counted = [f"{count} {reason}" for reason, count in left_out.items() if count]
    if not counted:
        return "it is empty; fill it with `swift-rlx store import` or `swift-rlx store generate`"
    return f"groups left out: {', '.join(counted)}; score them with `swift-rlx store score`, or loosen the filters"
