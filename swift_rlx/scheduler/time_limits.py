"""How long an attempt may take: in all, until its first token, and between two tokens.

Only the whole time is counted for every worker. That a request stalls is seen where a worker tells of tokens as it
makes them (`Capabilities.streams`). A request without new tokens is not at fault while its worker is busy with
others that came before it: it waits in the engine's own queue, or was set back by it. So every token of a worker is a
sign of life for all of its requests, until one that was sent later gets its first token: from then on an older one that
stays silent has been passed over, and only its own tokens count for it. Nothing counts while the worker takes weights,
or while a conversation is with its environment.
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
    """An attempt in the eyes of its worker's `Pulse`. `since_s`: its own last sign of life, or when it was passed."""

    number: int
    since_s: float
    has_begun: bool = False
    is_passed: bool = False
    is_away: bool = False
    """It is with its environment, not with the worker."""


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
        wait = self._waits[self._number] = Wait(self._number, self._clock.now())
        return wait

    def told(self, wait: Wait, is_away: bool = False) -> None:
        """The attempt made tokens. `is_away`: it needs none of the worker until it tells something again."""
        now = self._clock.now()
        self._last_s = wait.since_s = now
        wait.is_passed, wait.is_away = False, is_away
        if wait.has_begun:
            return
        wait.has_begun = True
        for other in self._waits.values():
            if other.number >= wait.number:
                return
            if not other.is_passed:
                other.is_passed, other.since_s = True, now

    def ended(self, wait: Wait) -> None:
        """The attempt is over."""
        del self._waits[wait.number]

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """The worker takes weights; after that all of its answers are waited for anew."""
        self._publishes += 1
        try:
            yield
        finally:
            self._publishes -= 1
            self._last_s = self._clock.now()
            for wait in self._waits.values():
                wait.is_passed, wait.since_s = False, self._last_s

    @property
    def is_publishing(self) -> bool:
        """Whether the worker takes weights."""
        return self._publishes > 0

    def silent_since(self, wait: Wait) -> float:
        """When the last sign of life was that counts for this attempt; now, where it needs not give one."""
        if self._publishes or wait.is_away:
            return self._clock.now()
        return wait.since_s if wait.is_passed else max(wait.since_s, self._last_s)


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
