"""From the sources' raw rewards to one reward a row: one scale, ensembles, weights; and what each source did to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from swift_rlx.errors import ConfigError
from swift_rlx.rewards.combine import combine_rewards
from swift_rlx.rewards.ensemble import Disagreement, Ensemble, disagreement
from swift_rlx.rewards.normalize import AsTheyAre, Normalizer


@dataclass(frozen=True)
class Combination:
    """rewards_B: 0 where invalid, the dtype of the input. valid_B: bool, False = unscored.

    shares: of the variance of the reward that each objective brings in, by name; they sum to 1, and one that pulls
    against the others is below 0. Empty where the rewards do not differ.
    min_correlation: of the two objectives that agree least; NaN with fewer than two that vary.
    members: how far an ensemble's members are apart; None without one.
    """

    rewards_B: torch.Tensor
    valid_B: torch.Tensor
    shares: Mapping[str, float]
    min_correlation: float
    members: Disagreement | None = None


class RewardCombiner:
    """The weighted sum over the objectives: the sources, those of `members` made one by `ensemble`.

    names: of the sources, F. weights_F: of each; members have one weight. members: numbers of their columns.

    Raises ConfigError where the members' weights differ, or there are fewer than two.
    """

    def __init__(
        self,
        names: Sequence[str],
        weights_F: torch.Tensor,
        normalizer: Normalizer | None = None,
        ensemble: Ensemble | None = None,
        members: Sequence[int] = (),
    ) -> None:
        self._normalizer = normalizer or AsTheyAre()
        self._ensemble, self._members = ensemble, list(members)
        self._others = [at for at in range(len(names)) if ensemble is None or at not in self._members]
        self._names = [names[at] for at in self._others]
        self._weights = weights_F[self._others]
        if ensemble is not None:
            of_members = weights_F[self._members]
            if len(self._members) < 2:
                raise ConfigError(
                    f"--reward_ensemble needs at least two reward models, and there are {len(self._members)}: give"
                    " more --reward_model, or drop it"
                )
            if (of_members != of_members[0]).any():
                raise ConfigError(
                    f"--reward_weights {of_members.tolist()} of the members of --reward_ensemble differ, and an"
                    " ensemble has one weight: give them the same"
                )
            self._names.append("ensemble")
            self._weights = torch.cat([self._weights, of_members[:1]])

    def combine(
        self, rewards_BF: torch.Tensor, group_ids_B: torch.Tensor, *, update: bool = False
    ) -> Combination:
        """`update`: the rows are trained on, and count in running statistics. Raises as `combine_rewards`."""
        combine_rewards(rewards_BF, rewards_BF.new_ones(rewards_BF.shape[1]))  # refuses what is infinite
        scaled_BF = self._normalizer.scaled(rewards_BF, group_ids_B, update)
        objectives_BO, members = scaled_BF[:, self._others], None
        if self._ensemble is not None:
            members_BM = scaled_BF[:, self._members]
            members = disagreement(members_BM)
            objectives_BO = torch.cat([objectives_BO, self._ensemble.reduced(members_BM)[:, None]], dim=1)
        combined = combine_rewards(objectives_BO, self._weights.to(objectives_BO.device))
        return Combination(
            combined.rewards_B.to(rewards_BF.dtype),
            combined.valid_B,
            self._shares(objectives_BO, combined.rewards_B, combined.valid_B),
            _min_correlation(objectives_BO),
            members,
        )

    def restart(self, names: Sequence[str]) -> None:
        """These sources score by another version now: statistics of the one before say nothing about it."""
        self._normalizer.restart(names)

    def state(self) -> dict[str, Any]:
        """Running statistics, as plain data."""
        return self._normalizer.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._normalizer.load_state(state)

    def _shares(
        self, objectives_BO: torch.Tensor, rewards_B: torch.Tensor, valid_B: torch.Tensor
    ) -> dict[str, float]:
        """Cov(contribution, reward) / Var(reward), where the contributions of a row sum to its reward."""
        weights = self._weights.to(objectives_BO.device, torch.float64)
        scored = ~objectives_BO.isnan()
        available = (scored.double() @ weights.abs()).clamp(min=1e-300)
        parts_BO = objectives_BO.nan_to_num() * weights * (weights.abs().sum() / available)[:, None]
        parts_BO, rewards_B = parts_BO[valid_B], rewards_B[valid_B]
        variance = rewards_B.var(correction=0).item() if len(rewards_B) else 0.0
        if variance < 1e-12:
            return {}
        centered = rewards_B - rewards_B.mean()
        shares = (parts_BO * centered[:, None]).mean(0) / variance
        return dict(zip(self._names, shares.tolist(), strict=True))


def _min_correlation(objectives_BO: torch.Tensor) -> float:
    found = math.nan
    for one in range(objectives_BO.shape[1]):
        for other in range(one + 1, objectives_BO.shape[1]):
            pair_B2 = objectives_BO[:, [one, other]]
            pair_B2 = pair_B2[~pair_B2.isnan().any(1)]
            if len(pair_B2) > 1 and (pair_B2.std(0, correction=0) > 1e-12).all():
                found = min(torch.corrcoef(pair_B2.T)[0, 1].item(), 1.0 if math.isnan(found) else found)
    return found
