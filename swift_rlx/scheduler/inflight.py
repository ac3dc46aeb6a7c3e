"""How many answers a worker gets at a time when nobody says: as many as pay, within the target latency.

More rows in an engine's batch cost nothing up to some point, and from there on every row slows all others down. With s
the seconds per token of one answer at B rows, the worker makes B / s tokens per second, and

    e = d log(B / s) / d log(B)

says what part of the added rows is gained: 1 while rows are free, 0 where they only wait for each other. The limit
climbs while e is at least 1/2 and falls where it is less: for s = a + c B that is the knee B = a / c, at which answers
take twice as long as alone; for a speed that is flat up to K rows it is K. It is measured between two windows with
different limits, so the limit swings around the knee by `STEP` and follows it when lengths change.

The first limit is the worker's part of the first batch, for which the trainer waits; from there the limit is halved or
doubled until the knee lies between two windows.

A window in which answers took longer than the target on average lowers the limit in proportion, unless a lone answer
would take as long: then the lengths do not allow the target, and the knee alone decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FEW = 4
"""Rows at which an answer is taken to be almost alone; the least first limit."""
MAX_START = 64
"""Largest first limit: more are tried only where they pay, as an engine may hold memory for each."""
STEP = 0.125
"""Relative change from window to window, once the limit has met the knee for the first time."""
WORTH = 0.5
"""Least part of added rows that has to be gained."""
MIN_ANSWERS = 8
"""Answers that a window has at least; it also has as many as its limit."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was measured under one limit: of its answers the mean seconds, and the seconds per token."""

    limit: int
    latency_s: float
    token_s: float


@dataclass(frozen=True, slots=True)
class Climb:
    """What the next limit follows from. `is_fine`: the knee was met. `is_probe`: `previous` is the first window.

    `fastest_s`: seconds per token of an answer that is almost alone: the least seen, measured anew up to `FEW` rows;
    infinite where nothing is known yet.
    """

    limit: int = FEW
    previous: Window | None = None
    fastest_s: float = math.inf
    is_fine: bool = False
    is_probe: bool = False


def next_climb(climb: Climb, window: Window, target_latency_s: float, most: int) -> Climb:
    """The next limit, from 1 to `most`, after a window under `climb.limit` in which the worker was full."""
    fastest_s = _fastest_s(climb, window)
    alone_s = window.latency_s * fastest_s / window.token_s
    if window.latency_s > target_latency_s >= alone_s:
        lower = window.limit * max(target_latency_s / window.latency_s, 0.5)
        return Climb(max(min(int(lower), window.limit - 1), 1), None, fastest_s, True)
    if climb.previous is None:
        is_up, has_turned = climb.is_fine or window.limit <= FEW, False
    else:
        is_up = _gain(climb.previous, window) >= WORTH
        has_turned = is_up != (window.limit > climb.previous.limit) and not climb.is_probe
    is_fine = climb.is_fine or has_turned
    limit = min(_moved(window.limit, climb.previous, is_up, is_fine), most)
    is_probe = climb.previous is None and limit < window.limit
    # At the end of the range the limit stays; what it is compared with then stays too.
    return Climb(limit, window if limit != window.limit else climb.previous, fastest_s, is_fine, is_probe)


def _fastest_s(climb: Climb, window: Window) -> float:
    """Of an answer that is almost alone. Before it was measured: by the line s = a + c B through two windows."""
    if window.limit <= FEW:
        return window.token_s
    if climb.fastest_s < math.inf:
        return min(climb.fastest_s, window.token_s)
    if climb.previous is None:
        return math.inf
    slope = (window.token_s - climb.previous.token_s) / (window.limit - climb.previous.limit)
    return max(window.token_s - slope * window.limit, 0.0)


def _moved(limit: int, previous: Window | None, is_up: bool, is_fine: bool) -> int:
    """Away from the middle of the two last limits, and in any case away from the last one, but not below 1."""
    if not is_fine:
        return 2 * limit if is_up else max(limit // 2, 1)
    middle = math.sqrt(limit * (previous.limit if previous else limit))
    if is_up:
        return max(math.ceil(middle * (1 + STEP)), limit + 1 if middle <= limit else 1)
    return max(min(math.floor(middle / (1 + STEP)), limit - 1 if middle >= limit else limit), 1)


def _gain(one: Window, other: Window) -> float:
    """The part of the added rows that was gained."""
    rows = math.log(other.limit / one.limit)
    return math.log(other.limit / other.token_s / (one.limit / one.token_s)) / rows


@dataclass(frozen=True, slots=True)
class Mark:
    """What is kept of a request when it is sent: the window, and how often the worker had been full by then."""

    window: int
    times_full: int


class InflightLimit:
    """The limit of one worker, adapted to what its answers show. `most`: more than that is never needed.

    `first`: answers of the first batch that the worker makes.
    """

    def __init__(self, target_latency_s: float, most: int, first: int = FEW) -> None:
        self._target_latency_s = target_latency_s
        self._most = most
        self._climb = Climb(min(max(first, FEW), MAX_START, most))
        self._window = self._times_full = 0
        self._clear()

    @property
    def limit(self) -> int:
        """Answers in flight at most."""
        return self._climb.limit

    def sent(self, inflight: int) -> Mark:
        """A request was sent, and is one of so many in flight."""
        mark = Mark(self._window, self._times_full)
        self._times_full += inflight >= self.limit
        return mark

    def answered(self, mark: Mark, tokens: int, seconds: float) -> None:
        """The answer to a request came after so many seconds. One that was sent under another limit tells nothing."""
        if mark.window != self._window or tokens < 1 or seconds <= 0:
            return
        self._answers += 1
        self._full += self._times_full > mark.times_full
        self._tokens += tokens
        self._seconds += seconds
        if self._answers < max(self.limit, MIN_ANSWERS):
            return
        if 2 * self._full >= self._answers:
            window = Window(self.limit, self._seconds / self._answers, self._seconds / self._tokens)
            self._climb = next_climb(self._climb, window, self._target_latency_s, self._most)
            self._window += 1
        self._clear()

    def _clear(self) -> None:
        self._answers = self._full = self._tokens = 0
        self._seconds = 0.0
