"""How long an engine may be without a word before it is taken for lost.

Steps of one engine may take milliseconds, of another a minute, so the limit that is given suits the slowest. One that
has said some words has shown how long its silences are: from then on a silence `FACTOR` times as long as the longest
of them is one too many, from a floor on. An engine that was ended by mistake, because a step took longer than ever
before, is not again: each time an engine is ended for its silence, the next one begins with twice the floor.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MIN_WORDS = 20
"""Before these the engine may still compile or load, and the limit is what was given."""
FACTOR = 5.0
FLOOR_S = 15.0


class StallLimit:
    """`given_s`: the most that it ever is; `floor_s`: the least, once the engine has shown its silences."""

    def __init__(self, given_s: float, floor_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._given_s = given_s
        self._floor_s = floor_s
        self._clock = clock
        self._words = 0
        self._last_s = clock()
        self._longest_s = 0.0

    def word(self, silent_s: float) -> None:
        """The engine made tokens; at most so long it had answers to make and was silent."""
        now = self._clock()
        self._words += 1
        self.answered(min(silent_s, now - self._last_s))
        self._last_s = now

    def answered(self, after_s: float) -> None:
        """It answered something else after so long."""
        self._longest_s = max(self._longest_s, after_s)

    @property
    def seconds(self) -> float:
        """The limit of now."""
        if self._words < MIN_WORDS:
            return self._given_s
        return min(self._given_s, max(self._floor_s, FACTOR * self._longest_s))
