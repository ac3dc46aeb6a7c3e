"""From the scores of several sources to one advantage per completion: Bradley-Terry within each prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import require_float
from .bradley_terry import RIDGE, bradley_terry, theta_advantages
from .comparisons import Comparisons, choose_pairs, hard_preferences, votes, win_matrix

Preferences = Callable[[Tensor, list[tuple[int, int]]], Comparisons]
"""From the scores [S, F] of a prompt, and the pairs to compare."""


class PairwiseAdvantages(NamedTuple):
    """Of a generation batch."""

    advantages_B: Tensor
    """float64, theta - mean(theta) of the prompt; 0 for an invalid row."""
    comparisons: int
    disconnected: int
    """Prompts whose comparisons do not connect all of their completions."""


def by_votes(scores_SF: Tensor, pairs: list[tuple[int, int]]) -> Comparisons:
    """Votes of the sources, all equal; of one source its order."""
    return hard_preferences(scores_SF[:, 0], pairs) if scores_SF.shape[1] == 1 else votes(scores_SF, pairs)


def pairwise_advantages(
    scores_BF: Tensor,
    group_ids_B: Tensor,
    valid_B: Tensor,
    *,
    preferences: Preferences = by_votes,
    ridge: float = RIDGE,
) -> PairwiseAdvantages:
    """theta - mean(theta) for every row, each prompt for itself.

    Pairs are chosen by the gap of the mean score of the sources, so scores have to be on one scale (z-scores).

    Args:
        scores_BF: [B, F] one column per source, NaN where it has none; gathered over all ranks.
        group_ids_B: [B] integers; equal id = same prompt.
        valid_B: [B] bool; other rows are compared with nobody. So is a valid row without any score.
        preferences: how scores become preferences.
        ridge: of `bradley_terry`.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    require_float("pairwise_advantages", scores_BF=scores_BF)
    if scores_BF.ndim != 2 or not scores_BF.shape[0] == len(group_ids_B) == len(valid_B):
        raise ValueError(
            "pairwise_advantages takes scores [B, F] with one group id and one valid flag per row, got"
            f" {tuple(scores_BF.shape)}, {tuple(group_ids_B.shape)} and {tuple(valid_B.shape)}"
        )
    scores = scores_BF.detach().to("cpu", torch.float64)
    usable = valid_B.cpu() & ~scores.isnan().all(1)
    ids, group_B = torch.unique(group_ids_B.cpu(), return_inverse=True)
    members = [(usable & (group_B == group)).nonzero().flatten() for group in range(len(ids))]
    return _fit(scores, members, preferences, ridge)


def _fit(scores: Tensor, members: list[Tensor], preferences: Preferences, ridge: float) -> PairwiseAdvantages:
    largest = max((len(rows) for rows in members), default=0) or 1
    wins = torch.zeros(len(members), largest, largest, dtype=torch.float64)
    valid = torch.zeros(len(members), largest, dtype=torch.bool)
    made = 0
    for number, rows in enumerate(members):
        pairs = choose_pairs(scores[rows].nanmean(1))
        compared = preferences(scores[rows], pairs)
        wins[number, : len(rows), : len(rows)] = win_matrix(compared, len(rows))
        valid[number, : len(rows)] = True
        made += len(compared.preferences_C)
    fitted = bradley_terry(wins, valid, ridge)
    advantages_B = torch.zeros(len(scores), dtype=torch.float64)
    centered = theta_advantages(fitted.theta_PS, valid)
    for number, rows in enumerate(members):
        advantages_B[rows] = centered[number, : len(rows)]
    return PairwiseAdvantages(advantages_B, made, int((fitted.components_P > 1).sum()))
