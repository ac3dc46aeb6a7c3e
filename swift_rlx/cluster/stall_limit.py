"""How long an engine may be without a word before it is taken for lost.

Before its first answer an engine may load and compile, so the limit is what was given, which suits the slowest. From
then on a silence of `FLOOR_S` is one too many; a longer one is allowed to an engine that has prompts to read, which no
token comes from meanwhile, and to one that was silent for a while before and came back: `FACTOR` times as long. On a
CPU a new process is there after some 30 s, so one that hangs is replaced within a minute: after 15 s, a question every
2 s, and a second for every 50 tokens that it has to read.

An engine that was ended by mistake, because a step took longer than ever before, is not again: each time an engine is
ended for its silence, the next one begins with twice the floor.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FACTOR = 5.0
FLOOR_S = 15.0
READING_TOKENS_PER_S = 50.0
"""The slowest at which prompts are read: a model of a billion parameters on two cores."""


class StallLimit:
    """`given_s`: the most that it ever is; `floor_s`: the least, once the engine has answered something."""

    def __init__(self, given_s: float, floor_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._given_s = given_s
        self._floor_s = floor_s
        self._clock = clock
        self._has_worked = False
        self._last_s = clock()
        self._longest_s = 0.0

    def word(self, silent_s: float) -> None:
        """The engine made tokens, or scored some; at most so long it had to and was silent."""
        now = self._clock()
        self.answered(min(silent_s, now - self._last_s))
        self._has_worked = True
        self._last_s = now

    def answered(self, after_s: float) -> None:
        """It answered something else after so long. What was before the first word tells nothing of what follows."""
        if self._has_worked:
            self._longest_s = max(self._longest_s, after_s)

    def seconds(self, unread_tokens: int = 0) -> float:
        """The limit of now; `unread_tokens`: of the prompts of answers that have no token yet."""
        if not self._has_worked:
            return self._given_s
        reading_s = unread_tokens / READING_TOKENS_PER_S
        return min(self._given_s, max(self._floor_s + reading_s, FACTOR * self._longest_s))
