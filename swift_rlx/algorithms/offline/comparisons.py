"""Pairwise comparisons of the completions of one prompt: which pairs to compare, and which side is preferred.

A completion without a score (NaN) is compared with nobody. Ties count as half a win for each side.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import require_float

MIN_PAIRS = 20
"""Comparisons that a prompt gets at least, or all that there are."""
ALL_PAIRS_UP_TO = 8
"""Completions of which every pair is compared."""


class Comparisons(NamedTuple):
    """C comparisons among the S completions of one prompt."""

    pairs_C2: Tensor
    """int64, the smaller index first; a pair may occur again."""
    preferences_C: Tensor
    """float64 from 0 to 1: how far the first one is preferred; 0.5 is a tie."""


def choose_pairs(
    scores_S: Tensor, min_pairs: int = MIN_PAIRS, all_up_to: int = ALL_PAIRS_UP_TO
) -> list[tuple[int, int]]:
    """Pairs of completions worth comparing, by index, the smaller first.

    Up to `all_up_to` completions: all pairs. Above: those whose scores differ by more than a (population) standard
    deviation; if these are fewer than `min_pairs`, the next-largest gaps too. Wide gaps connect everybody with the best
    or the worst, and so with each other; where scores are equal, neighbors are added until the comparisons connect all,
    since theta of unconnected ones cannot be compared.

    Raises:
        ValueError: `scores_S` is not one-dimensional or not floating-point.
    """
    require_float("choose_pairs", scores_S=scores_S)
    if scores_S.ndim != 1:
        raise ValueError(f"choose_pairs takes scores of shape [S], got {tuple(scores_S.shape)}")
    scores = scores_S.double().tolist()
    scored = [index for index, score in enumerate(scores) if score == score]
    pairs = list(itertools.combinations(scored, 2))
    if len(scored) <= all_up_to:
        return pairs
    spread = torch.tensor([scores[i] for i in scored], dtype=torch.float64).std(correction=0).item()
    by_gap = sorted(pairs, key=lambda pair: (-abs(scores[pair[0]] - scores[pair[1]]), *pair))
    wide = sum(abs(scores[i] - scores[j]) > spread for i, j in pairs)
    chosen = by_gap[: max(wide, min(min_pairs, len(pairs)))]
    in_order = sorted(scored, key=lambda index: (scores[index], index))
    return chosen + _bridges(chosen, in_order)


def votes(scores_SF: Tensor, pairs: list[tuple[int, int]], weights_F: Tensor | None = None) -> Comparisons:
    """Each source votes for the completion that it scores higher; a preference is the weighted share of the votes.

    What Bradley-Terry is good at: several noisy judges. A source that lacks one of two scores (NaN) does not vote on
    that pair, and a pair on which nobody votes is left out.

    Args:
        scores_SF: [S, F] raw scores, one column per source; scales do not matter.
        pairs: from `choose_pairs`.
        weights_F: [F] of the sources, at least 0; None = equal.

    Raises:
        ValueError: shapes do not fit, or a weight is negative.
    """
    require_float("votes", scores_SF=scores_SF)
    if scores_SF.ndim != 2 or (weights_F is not None and weights_F.shape != scores_SF.shape[1:]):
        got = None if weights_F is None else tuple(weights_F.shape)
        raise ValueError(f"votes takes scores [S, F] and weights [F], got {tuple(scores_SF.shape)} and {got}")
    weights = torch.ones(scores_SF.shape[1]) if weights_F is None else weights_F
    if not (weights >= 0).all():
        raise ValueError(f"votes takes weights of at least 0, got {weights.tolist()}")
    pairs_C2 = _as_tensor(pairs)
    difference_CF = scores_SF.double()[pairs_C2[:, 0]] - scores_SF.double()[pairs_C2[:, 1]]
    cast_CF = (~difference_CF.isnan()) * weights.double()
    share_C = (cast_CF * (difference_CF.nan_to_num(0.0).sign() + 1) / 2).sum(1) / cast_CF.sum(1)
    voted = cast_CF.sum(1) > 0
    return Comparisons(pairs_C2[voted], share_C[voted])


def hard_preferences(scores_S: Tensor, pairs: list[tuple[int, int]]) -> Comparisons:
    """1 for the higher score, 0 for the lower, a half for equal ones.

    One score orders the completions totally, so theta depends on their ranks only, and is finite only with a ridge.
    """
    return votes(scores_S[:, None], pairs)


def soft_preferences(scores_S: Tensor, pairs: list[tuple[int, int]], temperature: float = 1.0) -> Comparisons:
    """sigmoid of the difference in score over `temperature`; Bradley-Terry without a ridge gives scores / temperature.

    Raises:
        ValueError: a dtype is wrong or `temperature` is not above 0.
    """
    require_float("soft_preferences", scores_S=scores_S)
    if temperature <= 0:
        raise ValueError(f"soft_preferences takes a temperature above 0, got {temperature}")
    pairs_C2 = _as_tensor(pairs)
    scores = scores_S.double()
    return Comparisons(pairs_C2, ((scores[pairs_C2[:, 0]] - scores[pairs_C2[:, 1]]) / temperature).sigmoid())


def win_matrix(comparisons: Comparisons, size: int) -> Tensor:
    """[S, S] float64: how often row i was preferred to column j, what `bradley_terry` takes."""
    wins = torch.zeros(size, size, dtype=torch.float64)
    first, second = comparisons.pairs_C2.unbind(1)
    wins.index_put_((first, second), comparisons.preferences_C, accumulate=True)
    wins.index_put_((second, first), 1 - comparisons.preferences_C, accumulate=True)
    return wins


def _as_tensor(pairs: list[tuple[int, int]]) -> Tensor:
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


def _bridges(chosen: list[tuple[int, int]], in_order: list[int]) -> list[tuple[int, int]]:
    """Neighbors in `in_order` that `chosen` leaves in different components."""
    root = {index: index for index in in_order}

    def find(index: int) -> int:
        while root[index] != index:
            index = root[index]
        return index

    for i, j in chosen:
        root[find(i)] = find(j)
    found = []
    for i, j in itertools.pairwise(in_order):
        if find(i) != find(j):
            root[find(i)] = find(j)
            found.append((min(i, j), max(i, j)))
    return found
