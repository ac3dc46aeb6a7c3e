"""Whether a worker's log-probs of the probe move with the trainer's, from one version of the weights to the next.

One comparison has to allow for the noise of the arithmetic, which in a coarse float type is larger than what many
optimizer steps change. A worker that takes no weights at all is found by what adds up: the trainer's log-probs have
moved and its own have not. Each token of the probe votes by whether the worker's is nearer to where it was, or to where
it would be had it moved as the trainer's. Votes need no scale of the noise, and a rare token has one like any other.
"""

from __future__ import annotations

import numpy as np

from swift_rlx.backends import Probe
from swift_rlx.types import FloatArray

MOVED = 0.05
"""The trainer's log-probs have moved where their mean square is over that of this share of the probe's tolerance."""
TIMES_THE_NOISE = 2.0
"""And over that of so many times the difference that worker and trainer had at first."""
AGREED = 0.9
"""Share of the votes that decides. Noise that is as large as the move splits them."""


class ProbeTrail:
    """What worker and trainer said of the probe under the last version that the worker surely took."""

    def __init__(self) -> None:
        self._last: tuple[Probe, FloatArray] | None = None

    def stays_behind(self, probe: Probe, served: FloatArray) -> bool:
        """Whether the worker has not moved although the trainer has; `served` [T - 1] is what it says now.

        To be asked for every version. The first one, and the first with another text, is taken for served.
        """
        if self._last is None or not np.array_equal(self._last[0].token_ids, probe.token_ids):
            self._last = probe, served
            return False
        before, own_before = self._last
        move, own = probe.logprobs - before.logprobs, served - own_before
        noise = _size(own_before - before.logprobs)
        if _size(move) <= max(MOVED * probe.tolerance, TIMES_THE_NOISE * noise):
            return False
        votes = float(np.mean(np.abs(own) < np.abs(own - move)))
        if votes <= 1.0 - AGREED:
            self._last = probe, served
        return votes >= AGREED


def _size(values: FloatArray) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
