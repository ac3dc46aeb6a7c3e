"""A second version of a served reward that scores the same rows and is not used: how far the two agree, in the log.

It has a thread and an event loop of its own, so that it delays no call; where it falls behind, calls are left out and
counted. Its failures are counted and change nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from queue import Empty, Full, Queue
from typing import Protocol

from swift_rlx.errors import RewardError
from swift_rlx.reward_service.wire import Row, ScoreReply

logger = logging.getLogger("swift_rlx")

MAX_WAITING = 16
"""Calls that wait for the shadow."""
LOG_EVERY_S = 60.0


@dataclass(frozen=True)
class Agreement:
    """Of rows that both scored. `same_order`: share of pairs of rows in one call that both put in the same order,
    of those that neither finds equal; `num_pairs` of them. `skipped`, `failed`: calls.
    """

    rows: int = 0
    difference_sum: float = 0.0
    absolute_sum: float = 0.0
    num_pairs: int = 0
    num_same_order: int = 0
    skipped: int = 0
    failed: int = 0

    def with_call(self, used: list[float | None], shadow: list[float | None]) -> Agreement:
        """With the scores of one more call."""
        both = [(a, b) for a, b in zip(used, shadow, strict=True) if a is not None and b is not None]
        pairs = [(a - c) * (b - d) for (a, b), (c, d) in itertools.combinations(both, 2)]
        return replace(
            self,
            rows=self.rows + len(both),
            difference_sum=self.difference_sum + sum(b - a for a, b in both),
            absolute_sum=self.absolute_sum + sum(abs(b - a) for a, b in both),
            num_pairs=self.num_pairs + sum(pair != 0 for pair in pairs),
            num_same_order=self.num_same_order + sum(pair > 0 for pair in pairs),
        )

    def __str__(self) -> str:
        rows, pairs = max(self.rows, 1), max(self.num_pairs, 1)
        mean, absolute = self.difference_sum / rows, self.absolute_sum / rows
        return (
            f"{self.rows} rows, mean difference {mean:+.4g}, absolute {absolute:.4g}, {self.num_same_order / pairs:.1%}"
            f" of {self.num_pairs} pairs in the same order, {self.skipped} calls left out, {self.failed} failed"
        )


class ScoringReward(Protocol):
    """The version that is tried: a served reward of its own."""

    name: str

    @property
    def version(self) -> str: ...

    async def score(self, rows: Sequence[Row]) -> list[float | None]: ...


class Shadow:
    """`compare` never waits."""

    def __init__(self, reward: ScoringReward) -> None:
        self.agreement = Agreement()
        self._reward = reward
        self._waiting: Queue[tuple[list[Row], ScoreReply]] = Queue(MAX_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._logged_s = time.monotonic()

    def compare(self, rows: list[Row], used: ScoreReply) -> None:
        """Score these rows too, some time."""
        with self._lock:
            try:
                self._waiting.put_nowait((rows, used))
            except Full:
                self.agreement = replace(self.agreement, skipped=self.agreement.skipped + 1)
            if self._thread is None:
                name = f"shadow of {self._reward.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def tell(self, used: str) -> None:
        """Log how far this version and its shadow agree up to now."""
        self._logged_s = time.monotonic()
        logger.info(
            f"reward {self._reward.name!r}, {used} and its shadow {self._reward.version}: {self.agreement}"
        )

    def _run(self) -> None:
        while True:
            try:
                rows, used = self._waiting.get(timeout=LOG_EVERY_S)
            except Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._thread = None  # the next call starts another
                        return
                continue
            self._compare(rows, used)

    def _compare(self, rows: list[Row], used: ScoreReply) -> None:
        try:
            scores = asyncio.run(self._reward.score(rows))
        except RewardError as error:
            with self._lock:
                self.agreement = replace(self.agreement, failed=self.agreement.failed + 1)
            logger.info(f"the shadow of reward {self._reward.name!r} has no scores: {error}")
            return
        with self._lock:
            self.agreement = self.agreement.with_call(used.scores, scores)
        if time.monotonic() - self._logged_s >= LOG_EVERY_S:
            self.tell(used.version)
