"""Did the held-out reward rise? The rule by which an example succeeds or fails."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIN_PROMPTS = 32
MIN_RISE = 0.2
MIN_STANDARD_ERRORS = 3.0


@dataclass(frozen=True)
class Estimate:
    """The mean over the prompts, and the standard error of that mean."""

    mean: float
    standard_error: float


@dataclass(frozen=True)
class Verdict:
    """Rewards before and after training, and their difference."""

    before: Estimate
    after: Estimate
    rise: Estimate
    num_prompts: int

    @property
    def is_success(self) -> bool:
        """A rise of at least 0.2 and of at least three standard errors."""
        return self.rise.mean >= max(MIN_RISE, MIN_STANDARD_ERRORS * self.rise.standard_error)


def estimate(values_P: Sequence[float]) -> Estimate:
    """Of independent values: standard error = standard deviation (P - 1) over the root of P."""
    return Estimate(statistics.fmean(values_P), statistics.stdev(values_P) / math.sqrt(len(values_P)))


def compare(before_PS: Sequence[Sequence[float]], after_PS: Sequence[Sequence[float]]) -> Verdict:
    """Compare S rewards each for the same P prompts.

    Samples of one prompt are alike, so the prompt is the unit: its mean difference is one observation, and
    pairing takes the difference between easy and hard prompts out of the error.

    Raises ValueError: fewer than 32 prompts, or not the same number before and after.
    """
    if len(before_PS) != len(after_PS) or len(before_PS) < MIN_PROMPTS:
        raise ValueError(
            f"got {len(before_PS)} prompts before and {len(after_PS)} after training; the comparison needs "
            f"the same ones, at least {MIN_PROMPTS}"
        )
    before_P = [statistics.fmean(row) for row in before_PS]
    after_P = [statistics.fmean(row) for row in after_PS]
    return Verdict(
        before=estimate(before_P),
        after=estimate(after_P),
        rise=estimate([b - a for a, b in zip(before_P, after_P, strict=True)]),
        num_prompts=len(before_P),
    )
