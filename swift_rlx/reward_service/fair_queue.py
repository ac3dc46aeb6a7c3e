"""Rows that wait to be scored: one line a tenant, taken in turns, so that nobody's thousand rows delay another's one.

Invariants
- A batch has rows of one reward only. Its rows come from the tenants in turns, one each, and of a tenant in order.
- The tenant that has waited longest for a turn decides which reward is next; of its own it is the oldest row's.
- Rows of an ask that has ended (its client went away) are dropped when their turn comes.
- No more rows than `max_rows` wait.

Used from one asyncio loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from swift_rlx.reward_service.wire import Row, ScoreReply


class QueueFull(Exception):
    """The rows would exceed what may wait."""


@dataclass(eq=False)
class Ask:
    """The rows of one request, and the reply that grows as they are scored."""

    tenant: str
    reward: str
    rows: list[Row]
    reply: asyncio.Future[ScoreReply]
    version: str
    scores: dict[int, float | None] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)

    def settle(self, row: int, score: float | None, fault: str = "") -> None:
        """One row has its score, or the reason why it has none; the last one completes the reply."""
        self.scores[row] = score
        if fault:
            self.faults[row] = fault
        if len(self.scores) == len(self.rows) and not self.reply.done():
            scores = [self.scores[at] for at in range(len(self.rows))]
            self.reply.set_result(ScoreReply(self.version, scores, self.faults))


@dataclass(eq=False)
class Waiting:
    """A row in the queue. `alone`: it is to be scored by itself, because it may be the one that ends workers."""

    ask: Ask
    row: int
    alone: bool = False


class FairQueue:
    """See the module."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._lines: dict[str, deque[Waiting]] = {}  # in the order of turns
        self._alone: deque[Waiting] = deque()
        self._size = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return self._size

    def put(self, ask: Ask) -> None:
        """Raises `QueueFull`, and then takes none of the rows."""
        if self._size + len(ask.rows) > self._max_rows:
            raise QueueFull(f"{self._size} rows wait, and {self._max_rows} may")
        line = self._lines.setdefault(ask.tenant, deque())
        line.extend(Waiting(ask, row) for row in range(len(ask.rows)))
        self._size += len(ask.rows)
        self._changed.set()

    def put_alone(self, rows: list[Waiting]) -> None:
        """Rows that were taken and whose worker ended: each is scored by itself, before all others."""
        self._alone.extend(Waiting(one.ask, one.row, alone=True) for one in rows)
        self._size += len(rows)
        self._changed.set()

    async def take(self, max_rows: int, window_s: float) -> list[Waiting]:
        """A batch: at once where `max_rows` wait, else after `window_s` for more to come. Waits for the first row."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wait_for_rows(1, None)
            if not self._alone:
                await self._wait_for_rows(max_rows, loop.time() + window_s)
            if batch := self._batch(max_rows):  # else another worker took it, or its client went away
                return batch

    async def _wait_for_rows(self, rows: int, until_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        while self._size < rows and not self._alone:
            self._changed.clear()
            left = None if until_s is None else until_s - loop.time()
            if left is not None and left <= 0:
                return
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                return

    def _batch(self, max_rows: int) -> list[Waiting]:
        while self._alone:
            self._size -= 1
            if not (one := self._alone.popleft()).ask.reply.done():
                return [one]
        heads = ((tenant, self._head(tenant)) for tenant in list(self._lines))
        first = next((head for _, head in heads if head is not None), None)
        batch: list[Waiting] = []
        while first is not None and len(batch) < max_rows:
            before = len(batch)
            for tenant in list(self._lines):
                if len(batch) < max_rows:
                    self._move_next(tenant, first.ask.reward, batch)
            if len(batch) == before:
                break
        return batch

    def _head(self, tenant: str) -> Waiting | None:
        """The tenant's oldest row whose ask has not ended; a tenant without one has no line any more."""
        line = self._lines[tenant]
        while line and line[0].ask.reply.done():
            line.popleft()
            self._size -= 1
        if not line:
            del self._lines[tenant]
            return None
        return line[0]

    def _move_next(self, tenant: str, reward: str, batch: list[Waiting]) -> None:
        """The tenant's next row goes into the batch if it is of this reward, and the tenant behind the others."""
        head = self._head(tenant)
        if head is not None and head.ask.reward == reward:
            line = self._lines.pop(tenant)
            batch.append(line.popleft())
            self._size -= 1
            if line:
                self._lines[tenant] = line
