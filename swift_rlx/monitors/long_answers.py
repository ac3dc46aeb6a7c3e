"""Whether long answers train as often as they are generated."""

from __future__ import annotations

from collections import deque

import numpy as np

from swift_rlx.monitors.names import LONG

POOL = 10_000
"""Answers that define what is long now."""


class LongAnswers:
    """The slowest `LONG` of the last `POOL` answers that ended, and their share among those that trained.

    An answer trained if at least one of its tokens is in the loss mask. Where answers are equally slow at the limit,
    each counts for the part of it that makes the share among the ended ones exactly `LONG`.
    """

    def __init__(self) -> None:
        self._ended: deque[float] = deque(maxlen=POOL)
        self._trained: deque[tuple[float, int, int]] = deque(maxlen=POOL)

    def ended(self, latency_s: float) -> None:
        """An answer ended, whole or cut."""
        self._ended.append(latency_s)

    def trained(self, latency_s: float, tokens: int, trained_tokens: int) -> None:
        """An answer was picked up with `trained_tokens` > 0 in the mask."""
        self._trained.append((latency_s, tokens, trained_tokens))

    def begin_window(self) -> None:
        """Forget what trained; what is long is remembered."""
        self._trained.clear()

    def values(self) -> dict[str, float]:
        """The two metrics, or nothing where nothing ended or trained."""
        if not self._ended or not self._trained:
            return {}
        ended = np.fromiter(self._ended, np.float64, len(self._ended))
        latency, tokens, trained = np.asarray(self._trained, np.float64).T
        limit = np.quantile(ended, 1 - LONG, method="inverted_cdf")
        above, at = np.mean(ended > limit), np.mean(ended == limit)
        weight = np.where(latency > limit, 1.0, np.where(latency == limit, (LONG - above) / at, 0.0))
        values = {"rollout/long_answers_share": float(weight.mean())}
        if (total := float(weight @ tokens)) > 0:
            values["rollout/long_answers_in_mask"] = float(weight @ trained) / total
        return values
