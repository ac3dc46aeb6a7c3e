"""Advantage-weighted regression: imitate every completion with weight exp(advantage / temperature).

    A_n = (A - mean) / max(std, 1e-8)                 over the valid rows of the generation batch, population std
    w_i = exp((A_n,i - max A_n) / temperature)        in (0, 1]
    loss = -sum_i w_i log pi(y_i) / sum_i w_i

The paper's AWAC learns a critic; here the advantage is that of the stored rewards, which makes it AWR.

Source: Peng et al. 2019, arXiv 1910.00177 (AWR, equation 8); Nair et al. 2020, arXiv 2006.09359 (AWAC, equation 13).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..leave_one_out import loo_advantages
from .objective import Needs, NoPlan, Plan, StoredRows, required
from .weighted_ce import WeightedCE, num_tokens, per_token

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 1e-3, 1e3
_LEAST_STD = 1e-8

Advantages = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From rewards [B], group ids [B] and valid [B] to advantages [B]."""


class FlooredWeights(NamedTuple):
    """Of N completions; float64."""

    weights_N: Tensor
    low: int
    """Completions whose weight was under the floor."""
    low_share: float
    """Their share of the sum of the weights now."""


def reward_alone(rewards_B: Tensor, group_ids_B: Tensor, valid_B: Tensor) -> Tensor:
    """[B] the reward: for logs with one completion per prompt, where only the mean of the batch can be a baseline."""
    del group_ids_B, valid_B
    return rewards_B


def normalized(advantages_N: Tensor) -> Tensor:
    """[N] float64 with mean 0 and population standard deviation 1; zeros for equal ones."""
    advantages = advantages_N.detach().to("cpu", torch.float64)
    centered = advantages - advantages.mean()
    return centered / max(centered.square().mean().sqrt().item(), _LEAST_STD)


def awac_weights(advantages_N: Tensor, temperature: float) -> Tensor:
    """[N] exp((A - max A) / temperature): 1 for the best, and no overflow whatever the advantages.

    Raises:
        ValueError: the temperature is not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"awac_weights takes a temperature above 0, got {temperature}")
    return ((advantages_N - advantages_N.max()) / temperature).exp()


def temperature_for(advantages_N: Tensor, mean_weight: float = 0.5) -> float | None:
    """The temperature at which the mean weight is `mean_weight`, by bisection of its logarithm; None without one.

    The mean weight grows with the temperature, from the share of completions that tie for the best to 1.

    Raises:
        ValueError: `mean_weight` is not between 0 and 1.
    """
    if not 0 < mean_weight < 1:
        raise ValueError(f"temperature_for takes a mean weight between 0 and 1, got {mean_weight}")
    from scipy.optimize import brentq

    def excess(log_temperature: float) -> float:
        return awac_weights(advantages_N, math.exp(log_temperature)).mean().item() - mean_weight

    low, high = math.log(LOWEST_TEMPERATURE), math.log(HIGHEST_TEMPERATURE)
    if excess(low) >= 0 or excess(high) <= 0:
        return None
    return math.exp(brentq(excess, low, high, xtol=1e-14, rtol=1e-14))


def floored(weights_N: Tensor, floor: float = 0.1, min_low_share: float = 0.05) -> FlooredWeights:
    """Keep some weight on completions under the floor: each gets the floor, all together `min_low_share` of the sum.

    To reach the share they are scaled up alike, but never above the smallest weight that was not under the floor, so
    that the order of the weights is kept.

    Args:
        weights_N: [N] in (0, 1], one of them 1.
        floor: from 0 to 1; 0 changes nothing.
        min_low_share: from 0 to less than 1.

    Raises:
        ValueError: a setting is out of range.
    """
    if not (0 <= floor <= 1 and 0 <= min_low_share < 1):
        raise ValueError(
            f"floored takes a floor from 0 to 1 and a share under 1, got {floor} and {min_low_share}"
        )
    is_low = weights_N < floor
    weights = weights_N.clamp(min=floor)
    low, high = weights[is_low].sum().item(), weights[~is_low].sum().item()
    if low and low < min_low_share * (low + high):
        lift = min_low_share * high / ((1 - min_low_share) * low)
        lift = min(lift, weights[~is_low].min().item() / floor)
        weights = weights.where(~is_low, weights * lift)
        low *= lift
    return FlooredWeights(weights, int(is_low.sum()), low / (low + high))


@dataclass(slots=True)
class AdaptiveTemperature:
    """Keeps its value while the mean weight stays within `band`; else takes that of the `target`.

    Where none gives the target (more of the completions tie for the best than that) the value stays.
    """

    value: float = 1.0
    band: tuple[float, float] = (0.3, 0.7)
    target: float = 0.5
    is_feasible: bool = field(default=True, init=False)
    """Whether the last batch allowed a mean weight in the band."""

    def update(self, advantages_N: Tensor) -> float:
        """The temperature for this batch."""
        low, high = self.band
        mean = awac_weights(advantages_N, self.value).mean().item()
        self.is_feasible = low <= mean <= high
        if not self.is_feasible and (found := temperature_for(advantages_N, self.target)) is not None:
            self.value, self.is_feasible = found, True
        return self.value


@dataclass(slots=True)
class AWAC:
    """`--offline_objective awac`. `advantages`: leave-one-out within a prompt, or `reward_alone`."""

    name: ClassVar[str] = "awac"
    advantages: Advantages = loo_advantages
    temperature: AdaptiveTemperature = field(default_factory=AdaptiveTemperature)
    floor: float = 0.1
    min_low_share: float = 0.05
    beta: float = 0.0
    """Of a KL over the vocabulary from the reference; 0 needs neither logits nor a reference model."""
    length_norm: bool = False
    """Mean instead of sum of a completion's token log-probs."""

    @property
    def needs(self) -> Needs:
        return Needs(rewards=True, logits=self.beta > 0, reference=self.beta > 0)

    def plan(self, rows: StoredRows) -> Plan:
        rewards = required(rows.rewards_B, "rewards", self.name)
        valid = rows.valid_B.cpu()
        if not valid.any():
            return NoPlan()
        advantages_B = self.advantages(rewards.double(), rows.group_ids_B, rows.valid_B)
        advantages_N = normalized(advantages_B.cpu()[valid])
        weights_N = awac_weights(advantages_N, self.temperature.update(advantages_N))
        kept = floored(weights_N, self.floor, self.min_low_share)
        weights_B = torch.zeros(len(valid), dtype=torch.float64)
        weights_B[valid] = kept.weights_N / kept.weights_N.sum()
        weights_B = per_token(weights_B, rows) if self.length_norm else weights_B
        metrics = {
            "awac/temperature": self.temperature.value,
            "awac/temperature_infeasible": float(not self.temperature.is_feasible),
            "awac/mean_weight": weights_N.mean().item(),
            "awac/mean_weight_floored": kept.weights_N.mean().item(),
            "awac/floored": kept.low / len(weights_N),
            "awac/floored_share": kept.low_share,
        }
        return WeightedCE(self.name, weights_B, num_tokens(rows), self.beta, metrics, rows.valid_B)

    def state(self) -> dict[str, float]:
        return {"temperature": self.temperature.value}

    def load_state(self, state: Mapping[str, float]) -> None:
        self.temperature.value = state["temperature"]
