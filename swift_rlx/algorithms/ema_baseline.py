"""A running mean of the rewards as baseline: REINFORCE with one completion per prompt, without whitening."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import CheckpointError
from ._checks import require_tensors


class EMABaseline:
    """V, an exponential moving average of the batch means of the reward; A_i = R_i - V.

    V is used before the current batch changes it: it then does not depend on the current samples and the
    gradient stays unbiased. So call `advantages` (or `baseline`) first, then `update`. Updating first would
    scale the expected gradient by 1 - (1 - decay) / N, with N rows.

    The first batch has no V yet and uses its own mean, each row included: its expected gradient carries the
    factor 1 - 1/N and keeps the direction.

    The rewards must be those of all ranks, so that V is the same on each. A new baseline is needed when the
    reward itself changes.

        baseline = EMABaseline(0.95)
        advantages_B = baseline.advantages(rewards_B, valid_B)
        baseline.update(baseline.batch_mean(rewards_B, valid_B))

    Source: Williams 1992 (reinforcement baseline). State: one float, see `state_dict`.
    """

    def __init__(self, decay: float) -> None:
        """`decay` is the weight of the past per batch, from 0 (the previous batch's mean) to below 1.

        Raises:
            ValueError: `decay` is outside [0, 1).
        """
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"EMABaseline takes a decay from 0 to below 1, got {decay}")
        self.decay = decay
        self.value: float | None = None
        """V, None before the first batch with a valid row."""

    @staticmethod
    def batch_mean(rewards_B: Tensor, valid_B: Tensor) -> float | None:
        """Mean over the rows that are valid and finite, in float64; None when there is none.

        Raises:
            ValueError: shapes differ, or a dtype is wrong.
        """
        usable_B = _usable(rewards_B, valid_B)
        kept = rewards_B.detach()[usable_B].double()
        return kept.mean().item() if len(kept) else None

    def baseline(self, rewards_B: Tensor, valid_B: Tensor) -> float:
        """V before this batch; for the first batch its own mean, 0 without a valid row.

        Raises:
            ValueError: shapes differ, or a dtype is wrong.
        """
        value = self.value if self.value is not None else self.batch_mean(rewards_B, valid_B)
        return value if value is not None else 0.0

    def advantages(self, rewards_B: Tensor, valid_B: Tensor) -> Tensor:
        """[B] rewards minus V; 0 for rows that are not valid or not finite. Changes nothing.

        Args:
            rewards_B: [B] rewards, gathered over all ranks.
            valid_B: [B] bool.

        Raises:
            ValueError: shapes differ, or a dtype is wrong.
        """
        usable_B = _usable(rewards_B, valid_B)
        advantages_B = rewards_B.detach().double() - self.baseline(rewards_B, valid_B)
        return advantages_B.where(usable_B, 0.0).to(rewards_B.dtype)

    def update(self, mean: float | None) -> None:
        """V <- decay * V + (1 - decay) * mean, the first mean becomes V; None or NaN changes nothing.

        Raises:
            ValueError: `mean` is infinite.
        """
        if mean is None or math.isnan(mean):
            return
        if math.isinf(mean):
            raise ValueError(f"EMABaseline.update takes the finite mean reward of a batch, got {mean}")
        self.value = mean if self.value is None else self.decay * self.value + (1 - self.decay) * mean

    def state_dict(self) -> dict[str, float | None]:
        """Plain JSON values: {"value": V}."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, float | None]) -> None:
        """Take V from `state_dict()`; the decay stays that of this object.

        Raises:
            CheckpointError: `state` does not hold a finite number or None as "value".
        """
        value = state.get("value", math.nan)
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
            raise CheckpointError(
                f"the saved state of the EMA baseline is {dict(state)!r}, it needs a finite number or null "
                'as "value"; take another checkpoint or start without one'
            )
        self.value = None if value is None else float(value)


def _usable(rewards_B: Tensor, valid_B: Tensor) -> Tensor:
    require_tensors("EMABaseline", "B", valid_B, rewards_B=rewards_B)
    return valid_B & torch.isfinite(rewards_B)
