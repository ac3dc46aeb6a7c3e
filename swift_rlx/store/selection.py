"""Which stored groups may train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swift_rlx.errors import StoreError
from swift_rlx.store.group_facts import MIXED, GroupFacts


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Conditions that a group meets to train.

    `min_members`: with a reward, and a token in the loss mask. `min_spread`: largest minus smallest reward; above 0
    it leaves groups out from which a baseline learns nothing. `min_best`: of the largest reward. `max_age`:
    optimizer steps since the oldest weights that made one of its tokens, which are steps of one run: with `own`,
    the names of that run's writers, those of others have no age, and `max_age` leaves them out. `recipe`: what the
    rewards are made of; None: all groups must have the same. `recipe_may_lack`: that no group has it is no error,
    but leaves out all. `sealed`: of each writer the last round that counts, None: all; a resumed run sees what it
    saw before.
    """

    min_members: int = 2
    min_spread: float = 0.0
    min_best: float | None = None
    max_age: int | None = None
    own: frozenset[str] | None = None
    recipe: str | None = None
    recipe_may_lack: bool = False
    sealed: Mapping[str, int] | None = None


class Selection:
    """The groups of a snapshot that a filter lets pass; `left_out` says how many it did not, by the first reason.

    Raises `StoreError` where rewards of several recipes would be mixed, or none is of the one that is asked for.
    """

    def __init__(self, facts: GroupFacts, wanted: GroupFilter, url: str) -> None:
        self._facts, self._wanted = facts, wanted
        self.left_out: Counter[str] = Counter()
        passes = np.ones(len(facts.scored_G), np.bool_)
        if wanted.sealed is not None:
            self._leave("sealed later", passes, self._is_sealed(wanted.sealed))
        self._leave("too few scored", passes, facts.scored_G >= max(wanted.min_members, 1))
        self._leave("rewards of another recipe", passes, facts.recipe_G == self._recipe(passes, url))
        self._leave("too little spread", passes, facts.spread_G >= np.float32(wanted.min_spread))
        if wanted.min_best is not None:
            self._leave("too low rewards", passes, facts.best_G >= np.float32(wanted.min_best))
        if wanted.max_age is not None and wanted.own is not None:
            own = [number for number, name in enumerate(facts.writers) if name in wanted.own]
            self._leave("no age, of another run", passes, np.isin(facts.writer_G, own))
        self._passes = passes

    def at(self, step: int) -> npt.NDArray[np.bool_]:
        """Which groups may train at that optimizer step, [G]."""
        if self._wanted.max_age is None:
            return self._passes
        return self._passes & (step - self._facts.oldest_G <= self._wanted.max_age)

    def _leave(self, reason: str, passes: npt.NDArray[np.bool_], condition: npt.NDArray[np.bool_]) -> None:
        self.left_out[reason] = int((passes & ~condition).sum())
        passes &= condition

    def _is_sealed(self, sealed: Mapping[str, int]) -> npt.NDArray[np.bool_]:
        last = np.array([sealed.get(name, -1) for name in self._facts.writers] or [-1], np.int64)
        return self._facts.round_G <= last[self._facts.writer_G]

    def _recipe(self, passes: npt.NDArray[np.bool_], url: str) -> int:
        """The number of the recipe that trains; -1 where nothing is left to have one."""
        found = Counter(self._facts.recipe_G[passes].tolist())
        names = self._facts.recipes
        if self._wanted.recipe is not None:
            if self._wanted.recipe in names and self._wanted.recipe != MIXED:
                return names.index(self._wanted.recipe)
            if self._wanted.recipe_may_lack:
                return -1
            raise StoreError(
                f"no group of the store '{url}' has rewards of '{self._wanted.recipe}'; there are"
                f" {_listed(found, names)}"
            )
        if len(found) > 1 or MIXED in [names[number] for number in found]:
            raise StoreError(
                f"the store '{url}' has rewards that must not be mixed in a batch: {_listed(found, names)}; score all"
                f" rows with `swift-rlx store rescore {url}`, or choose one of them as recipe"
            )
        return next(iter(found), -1)


def _listed(found: Counter[int], names: tuple[str, ...]) -> str:
    return ", ".join(f"'{names[number]}' ({count} groups)" for number, count in found.most_common()) or "none"
