"""Several reward models as one (Coste et al. 2023, arXiv 2310.02743): what they agree on is harder to exploit.

Members that differ in their base model or its seed help; copies of one model share its errors. Bring members to one
scale first. Shapes: members_BM are B rows by M members, NaN where a member did not score a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from swift_rlx.errors import ConfigError

DEFAULT_UWO = 0.5


class Ensemble(Protocol):
    """Makes one score of several."""

    def reduced(self, members_BM: torch.Tensor) -> torch.Tensor:
        """[B] in float64, over the members that scored; NaN where none did."""


@dataclass(frozen=True)
class Mean:
    """The mean. It still over-optimizes where members share their errors."""

    def reduced(self, members_BM: torch.Tensor) -> torch.Tensor:
        return members_BM.double().nanmean(1)


@dataclass(frozen=True)
class WorstCase:
    """WCO, eq. 4: the minimum."""

    def reduced(self, members_BM: torch.Tensor) -> torch.Tensor:
        members = members_BM.double()
        lowest = members.nan_to_num(nan=math.inf).amin(1)
        return lowest.where(~members.isnan().all(1), math.nan)


@dataclass(frozen=True)
class UncertaintyWeighted:
    """UWO, eq. 5: mean - coefficient x variance (of the population)."""

    coefficient: float = DEFAULT_UWO

    def reduced(self, members_BM: torch.Tensor) -> torch.Tensor:
        members = members_BM.double()
        mean = members.nanmean(1)
        return mean - self.coefficient * (members - mean[:, None]).square().nanmean(1)


def reduced_rows(ensemble: Ensemble, rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    """One score a row; None where a member has none: that row's would be of other models than its siblings'."""
    members_BM = torch.tensor(
        [[math.nan if one is None else one for one in row] for row in rows], dtype=torch.float64
    )
    scores = ensemble.reduced(members_BM).tolist()
    return [None if None in row else score for row, score in zip(rows, scores, strict=True)]


@dataclass(frozen=True)
class Disagreement:
    """std: mean over the rows of the members' standard deviation. spearman: mean rank correlation of two members.

    NaN where nothing can be said: a row needs two members, a correlation two different scores of each.
    """

    std: float
    spearman: float


def disagreement(members_BM: torch.Tensor) -> Disagreement:
    """How far members are from one opinion."""
    members = members_BM.double()
    both = (~members.isnan()).sum(1) > 1
    deviations = members[both] - members[both].nanmean(1, keepdim=True)
    std = deviations.square().nanmean(1).sqrt().mean().item() if both.any() else math.nan
    pairs = [
        _spearman(members[:, one], members[:, other])
        for one in range(members.shape[1])
        for other in range(one + 1, members.shape[1])
    ]
    told = [value for value in pairs if not math.isnan(value)]
    return Disagreement(std, sum(told) / len(told) if told else math.nan)


def _spearman(one: torch.Tensor, other: torch.Tensor) -> float:
    from scipy.stats import spearmanr

    scored = ~(one.isnan() | other.isnan())
    one, other = one[scored], other[scored]
    if len(one) < 2 or one.max() == one.min() or other.max() == other.min():
        return math.nan
    return float(spearmanr(one.numpy(), other.numpy()).statistic)


def parse_ensemble(text: str) -> Ensemble | None:
    """Of `--reward_ensemble`: none, mean, wco, uwo or uwo:C. Raises ConfigError."""
    kind, _, number = text.strip().partition(":")
    plain = {"none": None, "mean": Mean(), "wco": WorstCase(), "uwo": UncertaintyWeighted()}
    if kind in plain and not number and text.strip() == kind:
        return plain[kind]
    if kind == "uwo":
        try:
            coefficient = float(number)
        except ValueError:
            coefficient = math.nan
        if 0 <= coefficient < math.inf:
            return UncertaintyWeighted(coefficient)
    raise ConfigError(
        f"--reward_ensemble got {text!r}: it is none, mean, wco (the minimum) or uwo:C (mean - C x variance) with C of"
        " at least 0, such as uwo:0.5"
    )
