"""Several sources on one scale: as they are, by running statistics of each source, or within each group.

Shapes: rewards_BF are B rows by F sources, NaN where a source did not score a row, which then moves nothing. All in
float64. With sources as they are, nothing here is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

MIN_STD = 1e-6
MAX_Z = 3.0
"""A z-score is clipped to +- this."""


@dataclass(frozen=True)
class Moments:
    """Of the values so far. squares: sum of squared deviations from the mean (Welford)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: torch.Tensor) -> Moments:
        """Of a vector, without its NaNs."""
        values = values[~torch.isnan(values)].double()
        if not len(values):
            return cls()
        mean = values.mean()
        return cls(len(values), mean.item(), (values - mean).square().sum().item())

    def merged(self, other: Moments) -> Moments:
        """Of both (Chan, Golub and LeVeque 1979)."""
        count = self.count + other.count
        if not count:
            return self
        shift = other.mean - self.mean
        return Moments(
            count,
            self.mean + shift * other.count / count,
            self.squares + other.squares + shift**2 * self.count * other.count / count,
        )

    @property
    def std(self) -> float:
        """Of the population."""
        return (self.squares / self.count) ** 0.5 if self.count else 0.0

    def z(self, values: torch.Tensor) -> torch.Tensor:
        """clip((v - mean) / max(std, 1e-6), -3, 3)."""
        return ((values.double() - self.mean) / max(self.std, MIN_STD)).clamp(-MAX_Z, MAX_Z)


class Normalizer(Protocol):
    """Puts sources on one scale."""

    def scaled(self, rewards_BF: torch.Tensor, group_ids_B: torch.Tensor, update: bool) -> torch.Tensor:
        """[B, F] in float64. `update`: the rows are of the training, and count in what later rows are scaled by."""

    def restart(self, names: Sequence[str]) -> None:
        """Forget what is known of these sources: they score by another version now."""

    def state(self) -> dict[str, Any]:
        """As plain data, for a checkpoint."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""


class AsTheyAre:
    """No normalization."""

    def scaled(self, rewards_BF: torch.Tensor, group_ids_B: torch.Tensor, update: bool) -> torch.Tensor:
        return rewards_BF.double()

    def restart(self, names: Sequence[str]) -> None:
        """Nothing is known."""

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Nothing to know."""


class RunningZScore:
    """z per source, over all rows of the training so far: algorithms of the article on several objectives.

    A batch is scaled by the statistics before it, which do not depend on its samples; the first one of a source by
    its own.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._moments: dict[str, Moments] = {}

    def scaled(self, rewards_BF: torch.Tensor, group_ids_B: torch.Tensor, update: bool) -> torch.Tensor:
        columns = []
        for name, column in zip(self._names, rewards_BF.T, strict=True):
            of_batch, before = Moments.of(column), self._moments.get(name, Moments())
            columns.append((before if before.count else of_batch).z(column))
            if update:
                self._moments[name] = before.merged(of_batch)
        return torch.stack(columns, dim=1)

    def restart(self, names: Sequence[str]) -> None:
        for name in names:
            self._moments.pop(name, None)

    def state(self) -> dict[str, Any]:
        return {name: [one.count, one.mean, one.squares] for name, one in self._moments.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._moments = {name: Moments(*values) for name, values in state.items() if name in self._names}


class GroupZScore(AsTheyAre):
    """z per source within the completions of one prompt (GDPO); a source that is constant there contributes 0.

    Among n values no |z| exceeds sqrt(n - 1), so that nothing explodes where all but one are equal.
    """

    def scaled(self, rewards_BF: torch.Tensor, group_ids_B: torch.Tensor, update: bool) -> torch.Tensor:
        scaled = torch.empty_like(rewards_BF, dtype=torch.float64)
        for group in set(group_ids_B.tolist()):
            rows = group_ids_B == group
            columns = [Moments.of(column).z(column) for column in rewards_BF[rows].T]
            scaled[rows] = torch.stack(columns, dim=1)
        return scaled


def normalizer(kind: str, names: Sequence[str]) -> Normalizer:
    """Of `--reward_normalize`: none, zscore or group."""
    if kind == "zscore":
        return RunningZScore(names)
    return GroupZScore() if kind == "group" else AsTheyAre()
