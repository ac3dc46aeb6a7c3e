"""Mean and spread of values that come in parts, and scores on one scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FLOOR, CLIP = 1e-6, 3.0

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of values. Parts can be joined in any order."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Moments:
        """Of finite values; NaN means that there is none and is left out."""
        found = np.asarray(values, np.float64)
        found = found[~np.isnan(found)]
        if not len(found):
            return cls()
        mean = float(found.mean())
        return cls(len(found), mean, float(np.square(found - mean).sum()))

    def joined(self, other: Moments) -> Moments:
        """Of the values of both (Chan, Golub and LeVeque 1983, equation 2.1)."""
        if not self.count or not other.count:
            return self if self.count else other
        count, gap = self.count + other.count, other.mean - self.mean
        return Moments(
            count,
            self.mean + gap * other.count / count,
            self.squares + other.squares + gap * gap * self.count * other.count / count,
        )

    @property
    def std(self) -> float:
        """Of the population (divided by the count); 0 without values."""
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0


def zscore(values: npt.ArrayLike, moments: Moments) -> FloatArray:
    """clip((s - mean) / max(std, 1e-6), -3, 3) of each value s; NaN stays NaN. All equal: zeros."""
    found = np.asarray(values, np.float64)
    scaled: FloatArray = np.clip((found - moments.mean) / max(moments.std, FLOOR), -CLIP, CLIP)
    return scaled
