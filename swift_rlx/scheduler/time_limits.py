"""How long an attempt may take: in all, until its first token, and between two tokens.

Only the whole time is counted for every worker. That a request stalls is seen where a worker tells of tokens as it
makes them (`Capabilities.streams`). One that has no token yet may wait in the engine's own queue: while its worker
makes tokens for others it is not at fault, until one that was sent later has its first token; from then on it has been
passed over. One that has tokens has a place in the engine, and has to make more of them. Publishing makes all of them
wait for their place again. Nothing counts while the worker takes weights, or while a conversation is with its
environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from swift_rlx.clock import Clock, Timer

SHORTEST_WAIT_S = 1e-3


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that an attempt may take; `grace_s`: to end by itself once it was told to."""

    total_s: float
    first_token_s: float = math.inf
    token_gap_s: float = math.inf
    grace_s: float = 0.0


@dataclass(slots=True, eq=False)
class Wait:
    """An attempt in the eyes of its worker's `Pulse`.

    `since_s`: when its silence began, moved on by the time in which that was no fault. `excused_s`: since when it waits
    for its place; None: it has one, or was passed over. `is_away`: it is with its environment, not with the worker.
    """

    number: int
    since_s: float
    excused_s: float | None
    has_begun: bool = False
    is_away: bool = False


class Pulse:
    """The signs of life of one worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_s = -math.inf
        self._publishes = 0
        self._number = 0
        self._waits: dict[int, Wait] = {}  # in the order in which they were sent

    def sent(self) -> Wait:
        """An attempt begins."""
        self._number += 1
        now = self._clock.now()
        wait = self._waits[self._number] = Wait(self._number, now, now)
        return wait

    def told(self, wait: Wait, is_away: bool = False) -> None:
        """The attempt made tokens. `is_away`: it needs none of the worker until it tells something again."""
        now = self._clock.now()
        self._last_s = wait.since_s = now
        wait.has_begun, wait.is_away = True, is_away
        if wait.excused_s is None:
            return
        wait.excused_s = None
        for other in self._waits.values():
            if other.number >= wait.number:
                return
            if other.excused_s is not None:
                other.since_s = min(other.since_s + now - other.excused_s, now)
                other.excused_s = None

    def ended(self, wait: Wait) -> None:
        """The attempt is over."""
        del self._waits[wait.number]

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """The worker takes weights; after that all of its answers may wait for their place."""
        begin_s = self._clock.now()
        self._publishes += 1
        try:
            yield
        finally:
            self._publishes -= 1
            now = self._clock.now()
            self._last_s = min(self._last_s + now - begin_s, now)
            for wait in self._waits.values():
                wait.since_s = min(wait.since_s + now - begin_s, now)
                wait.excused_s = now

    @property
    def is_publishing(self) -> bool:
        """Whether the worker takes weights."""
        return self._publishes > 0

    def silent_since(self, wait: Wait) -> float:
        """When the silence began that counts for this attempt; now, where none does."""
        if self._publishes or wait.is_away:
            return self._clock.now()
        return wait.since_s if wait.excused_s is None else max(wait.since_s, self._last_s)


class TimeLimit:
    """Ends an attempt that takes too long: first by `abort`, after the grace by cancelling the task that waits for it.

    To be made in that task.
    """

    def __init__(
        self, worker: str, request_id: str, clock: Clock, limits: Limits, abort: Callable[[], None]
    ) -> None:
        self.reason: str | None = None
        """Why it was ended; None: it was not."""
        self._worker = worker
        self._request_id = request_id
        self._clock = clock
        self._limits = limits
        self._abort = abort
        self._pulse: Pulse | None = None
        self._wait: Wait | None = None
        self._begin_s = 0.0
        self._task = asyncio.current_task()
        self._timer: Timer | None = None

    def start(self, pulse: Pulse | None) -> None:
        """The clock runs. `pulse`: of the worker, where it tells of tokens as it makes them."""
        self._begin_s = self._clock.now()
        self._pulse = pulse
        self._wait = None if pulse is None else pulse.sent()
        self._look()

    def told(self, is_away: bool) -> None:
        """The attempt made tokens, or has ended with an answer."""
        if self._pulse is not None and self._wait is not None:
            self._pulse.told(self._wait, is_away)

    def stop(self) -> None:
        """The attempt has ended."""
        if self._timer is not None:
            self._timer.cancel()
        if self._pulse is not None and self._wait is not None:
            self._pulse.ended(self._wait)
            self._wait = None

    def _look(self) -> None:
        """A token plans nothing anew: when the time is up, it is looked up since when there is silence."""
        now, total_s = self._clock.now(), self._limits.total_s
        silence_s, since_s, missing = self._silence(now)
        total_left_s, left_s = self._begin_s + total_s - now, since_s + silence_s - now
        if min(total_left_s, left_s) > SHORTEST_WAIT_S:
            self._timer = self._clock.call_later(min(total_left_s, left_s), self._look)
        elif total_left_s <= left_s:
            self._expire(f"no answer to request {self._request_id} within {total_s:g} s")
        else:
            self._expire(f"no {missing} of request {self._request_id} for {silence_s:g} s")

    def _silence(self, now: float) -> tuple[float, float, str]:
        """How long it may last, since when it does, and what is missing."""
        if self._pulse is None or self._wait is None:
            return math.inf, now, ""
        since_s = self._pulse.silent_since(self._wait)
        if self._wait.has_begun:
            return self._limits.token_gap_s, since_s, "further token"
        return self._limits.first_token_s, since_s, "first token"

    def _expire(self, what: str) -> None:
        self.reason = f"worker '{self._worker}' gave {what}"
        self._abort()
        self._timer = self._clock.call_later(self._limits.grace_s, self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
