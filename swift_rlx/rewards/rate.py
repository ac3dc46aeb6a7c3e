"""How fast a source of rewards may be asked: calls at a time, calls a minute, tokens a minute."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from swift_rlx.clock import Clock
from swift_rlx.errors import ConfigError

MAX_CONCURRENCY = 64
"""Calls at a time where the reward declares nothing: an unbounded flood brings down a small server."""


@dataclass(frozen=True)
class RateLimits:
    """What a source allows; None: as much as comes.

    concurrency: calls at a time. requests_per_minute: calls that begin. tokens_per_minute: about a quarter of the
    characters of completions and prompts. Raises ConfigError for what is not above 0.
    """

    concurrency: int = MAX_CONCURRENCY
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"RateLimits got {name} {value}: it must be above 0; leave it out for none")


class RateGate:
    """Lets calls pass in the order in which they come. Used from one asyncio loop.

    Each rate is a bucket that holds a minute's worth at most, begins full and fills steadily, so that no minute sees
    more than twice the rate and the mean never exceeds it. A call that needs more than a bucket holds waits for a full
    one and leaves it in debt.
    """

    def __init__(self, limits: RateLimits, clock: Clock) -> None:
        self._clock = clock
        self._places = asyncio.Semaphore(limits.concurrency)
        self._line = asyncio.Lock()
        self._requests = _Bucket(limits.requests_per_minute)
        self._tokens = _Bucket(limits.tokens_per_minute)

    @asynccontextmanager
    async def passed(self, tokens: float) -> AsyncIterator[None]:
        """Within the context, a call with that many tokens may run."""
        async with self._places:
            async with self._line:  # fair: asyncio wakes those who wait in their order
                wait_s = self._wait_s(tokens)
                while wait_s > 0:
                    await self._clock.sleep(wait_s)
                    wait_s = self._wait_s(tokens)
                self._requests.take(1.0)
                self._tokens.take(tokens)
            yield

    def _wait_s(self, tokens: float) -> float:
        now_s = self._clock.now()
        return max(self._requests.wait_s(1.0, now_s), self._tokens.wait_s(tokens, now_s))


class _Bucket:
    """What is left of a rate; without one it never runs dry."""

    def __init__(self, per_minute: float | None) -> None:
        self._per_minute = per_minute
        self._left = per_minute or 0.0
        self._at_s: float | None = None

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until that much may be taken."""
        if self._per_minute is None:
            return 0.0
        passed_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        self._left = min(self._per_minute, self._left + passed_s * self._per_minute / 60.0)
        missing = min(amount, self._per_minute) - self._left
        return 0.0 if missing <= 1e-9 * self._per_minute else missing * 60.0 / self._per_minute

    def take(self, amount: float) -> None:
        if self._per_minute is not None:
            self._left -= amount
