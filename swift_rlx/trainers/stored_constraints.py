"""The constraint filter on the completions of a store: how far each is from what the others of the store are like.

A completion of the data is judged by the data: its words by the token frequencies of all, its length by the mean of its
group, its entities by those of the prompt and of the best completion of its group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from swift_rlx.algorithms.offline import (
    CONSTRAINTS,
    Candidate,
    ConstraintFilter,
    LengthThresholds,
    ReferenceTokens,
    Verdict,
    token_counts,
)
from swift_rlx.algorithms.offline.constraint_settings import ConstraintPlan
from swift_rlx.integration.stored_dataset import GROUP
from swift_rlx.store import StoredGroup
from swift_rlx.store.stored_group import as_row_id
from swift_rlx.trainers.stored_rows import Place, may_train, sampled_ids
from swift_rlx.types import Trajectory

SAMPLE_ROWS = 20_000
"""Completions of the data, at most, whose words and lengths the filter is calibrated on."""


@dataclass(frozen=True)
class StoredTexts:
    """`group_of`: a group by its id. `decode`: token ids as text. `vocabulary`: tokens that the model has."""

    group_of: Callable[[int], StoredGroup]
    decode: Callable[[list[int]], str]
    vocabulary: int


@dataclass(frozen=True)
class _Known:
    """Of a group."""

    mean_tokens: float
    wanted: frozenset[str]


class StoredConstraints:
    """`rows`: of the data set, each with its group and its messages.

    `own`: what the filter says of the data it is calibrated on. Raises ConfigError where a constraint rejects almost
    all of it.
    """

    def __init__(self, plan: ConstraintPlan, rows: Any, texts: StoredTexts, seed: int) -> None:
        self.plan, self._texts = plan, texts
        sample = self._sample(rows, seed)
        tokens = [_ids(member) for member, _ in sample]
        self.reference = ReferenceTokens.of(token_counts(torch.cat(tokens), texts.vocabulary))
        thresholds = LengthThresholds.calibrate(self.reference, tokens, plan.quantile)
        self._filter = ConstraintFilter(self.reference, thresholds, plan.limits, plan.constraints)
        self.own: Verdict = self._filter.check_own_data([self._candidate(*one) for one in sample])

    def judge(self, places: Sequence[Place], rows: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        """[n, 3] bool, a column for each of `CONSTRAINTS`: of the places in these rows. An empty place holds them."""
        known: dict[str, _Known] = {}
        passes_nC = torch.ones(len(places), len(CONSTRAINTS), dtype=torch.bool)
        for at, (place, row) in enumerate(zip(places, rows, strict=True)):
            if place.is_empty:
                continue
            if row[GROUP] not in known:
                known[row[GROUP]] = self._known(self._group(row), row["messages"])
            passes_nC[at] = self._filter.judge([self._candidate(place.member, known[row[GROUP]])]).passes_BC[
                0
            ]
        return passes_nC

    def _sample(self, rows: Any, seed: int) -> list[tuple[Trajectory, _Known]]:
        """Completions of whole groups, in an order that the seed alone decides: the same on all ranks."""
        found: list[tuple[Trajectory, _Known]] = []
        for number in np.random.Generator(np.random.Philox(seed % 2**64)).permutation(len(rows)).tolist():
            row = rows[number]
            group = self._group(row)
            known = self._known(group, row["messages"])
            found += [(member, known) for member in group.group.members if may_train(member)]
            if len(found) >= SAMPLE_ROWS:
                break
        return found

    def _group(self, row: Mapping[str, Any]) -> StoredGroup:
        return self._texts.group_of(as_row_id(row[GROUP]))

    def _known(self, group: StoredGroup, messages: Sequence[Mapping[str, Any]]) -> _Known:
        members = [member for member in group.group.members if may_train(member)]
        mean = sum(member.completion.num_sampled for member in members) / max(len(members), 1)
        if "entities" not in self.plan.constraints or not members:
            return _Known(mean, frozenset())
        asked = [str(one["content"]) for one in messages if one["role"] != "system"]
        best = max(members, key=lambda member: member.score.reward or 0.0)
        found = {name for text in [*asked, self._text(best)] for name in self.plan.extractor(text)}
        return _Known(mean, frozenset(found))

    def _candidate(self, member: Trajectory, known: _Known) -> Candidate:
        found = self.plan.extractor(self._text(member)) if known.wanted else ()
        return Candidate(_ids(member), known.mean_tokens, frozenset(found), known.wanted)

    def _text(self, member: Trajectory) -> str:
        return self._texts.decode(sampled_ids(member).tolist())


def _ids(member: Trajectory) -> torch.Tensor:
    return torch.from_numpy(sampled_ids(member).astype(np.int64))
