"""How much may be on its way to one server at a time; who comes first goes first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from swift_rlx.clock import Clock, LoopClock
from swift_rlx.errors import BackendUnavailable, ConfigError

MAX_WAITING = 100_000
_TIMER_S = 1e-3
"""A timer may run so much too early."""


@dataclass(frozen=True, slots=True)
class InflightLimits:
    """`requests` and their `tokens` (prompt and the most that may be generated) at a time; None: any number.

    A request with more tokens than the limit goes alone.
    """

    requests: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests", "tokens"):
            if (limit := getattr(self, name)) is not None and limit < 1:
                raise ConfigError(
                    f"{name} {limit} in flight is refused: use at least 1, or None for any number"
                )


class Gate:
    """Lets requests through, within the limits and not while the server wants to be left alone.

    `name`: of the server, for messages. To be used in one asyncio loop.
    """

    def __init__(self, name: str, limits: InflightLimits, clock: Clock | None = None) -> None:
        self.requests = 0
        """That are through now."""
        self.tokens = 0
        """Of these requests."""
        self._name = name
        self._limits = limits
        self._clock = clock or LoopClock()
        self._closed_until_s = float("-inf")
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def place(self, tokens: int) -> AsyncIterator[None]:
        """Wait for a place for a request of so many tokens, and have it within the block.

        Raises `BackendUnavailable` where too many wait already.
        """
        await self._enter(tokens)
        try:
            yield
        finally:
            self.requests -= 1
            self.tokens -= tokens
            self._let_in()

    @property
    def closed_s(self) -> float:
        """For how long it stays closed."""
        return max(self._closed_until_s - self._clock.now(), 0.0)

    def close_for(self, seconds: float) -> None:
        """Let nobody through for so long."""
        self._closed_until_s = max(self._closed_until_s, self._clock.now() + seconds)
        self._clock.call_later(seconds, self._let_in)

    async def _enter(self, tokens: int) -> None:
        if not self._waiting and self._has_room(tokens):
            self._take(tokens)
            return
        if len(self._waiting) >= MAX_WAITING:
            raise BackendUnavailable(f"{self._name} has {MAX_WAITING} requests waiting, which is the limit")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((tokens, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had its place in the same moment
                self.requests -= 1
                self.tokens -= tokens
            self._let_in()
            raise

    def _let_in(self) -> None:
        while self._waiting:
            tokens, turn = self._waiting[0]
            if turn.done():  # it does not wait any more
                self._waiting.popleft()
            elif self._has_room(tokens):
                self._waiting.popleft()
                self._take(tokens)
                turn.set_result(None)
            else:
                return

    def _take(self, tokens: int) -> None:
        self.requests += 1
        self.tokens += tokens

    def _has_room(self, tokens: int) -> bool:
        limits = self._limits
        if self.closed_s > _TIMER_S:
            return False
        if limits.requests is not None and self.requests >= limits.requests:
            return False
        return limits.tokens is None or not self.requests or self.tokens + tokens <= limits.tokens
