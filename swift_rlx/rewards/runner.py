"""One reward beside the training: time limits, retries, rate limits, known scores, and the version that scored.

    rows -> known scores -> calls -> rate gate -> execution within the limit -> again, where the error may pass

Where a call of the list form takes too long, its rows are tried alone, each with a limit of its own, as where it
raises. So a row that hangs costs that row, and two limits of time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from swift_rlx.clock import Clock, LoopClock
from swift_rlx.errors import RewardError
from swift_rlx.rewards.batch import Call
from swift_rlx.rewards.counters import RewardCounters
from swift_rlx.rewards.execution import Execution
from swift_rlx.rewards.on_error import RAISE, OnError
from swift_rlx.rewards.outcome import Outcome
from swift_rlx.rewards.rate import RateGate
from swift_rlx.rewards.score_cache import ScoreCache, score_key
from swift_rlx.rewards.scoring_plan import ScoringPlan
from swift_rlx.rewards.spec import Reward, RewardSpec

MAX_RETRIES = 3
BACKOFF_S, MAX_BACKOFF_S = 0.5, 15.0
"""Wait before the first retry; doubled with each further one."""
CHARACTERS_A_TOKEN = 4.0
MAX_VERSIONS_IN_A_SCORING = 5


@dataclass(frozen=True)
class RunnerSettings:
    """limit_s: seconds for a row alone, and for a call. on_error: what a failing row gets."""

    limit_s: float = 60.0
    on_error: OnError = RAISE


@dataclass(frozen=True)
class Scored:
    """`values`, one a row; `version`: of the reward, the same for all of them."""

    values: tuple[float | None, ...]
    version: str
    counters: RewardCounters = field(default_factory=RewardCounters)


class RewardRunner:
    """Scores rows by one reward. Used from one asyncio loop."""

    def __init__(
        self,
        reward: Reward,
        execution: Execution,
        settings: RunnerSettings | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.reward = reward
        self.execution = execution
        self._settings = settings or RunnerSettings()
        self._clock = clock or LoopClock()
        self._chance = chance
        self._plan = ScoringPlan(reward.spec, self._settings.on_error)
        self._gate = RateGate(reward.limits, self._clock)
        self._cache = ScoreCache() if reward.spec.cache else None

    @property
    def spec(self) -> RewardSpec:
        return self.reward.spec

    @property
    def name(self) -> str:
        return self.reward.spec.name

    async def score(self, completions: Sequence[Any], columns: dict[str, Any]) -> Scored:
        """The rows' values, all by one version of the reward.

        Raises RewardError as the policy says, and where the version does not stand still; `NeedsMainThread`.
        """
        counters = RewardCounters()
        for _ in range(MAX_VERSIONS_IN_A_SCORING):
            version = self.reward.version
            values = await self._score_known(completions, columns, version, counters)
            if self.reward.version == version:
                return Scored(tuple(values), version, counters)
        raise RewardError(
            f"{self.spec.label} changed its version during each of {MAX_VERSIONS_IN_A_SCORING} scorings of the same"
            f" rows and is {self.reward.version!r} now: its servers run different versions; run one"
        )

    def close(self) -> None:
        """No more scoring."""
        self.execution.close()

    async def _score_known(
        self, completions: Sequence[Any], columns: dict[str, Any], version: str, counters: RewardCounters
    ) -> list[float | None]:
        if self._cache is None:
            return await self._score(completions, columns, counters)
        keys = [
            score_key(self.name, version, completion, _of_row(columns, row))
            for row, completion in enumerate(completions)
        ]
        values = [self._cache.get(key) for key in keys]
        unknown = [row for row, value in enumerate(values) if value is None]
        counters.cached += len(values) - len(unknown)
        if unknown:
            rest = _of_rows(columns, unknown)
            scored = await self._score([completions[row] for row in unknown], rest, counters)
            for row, value in zip(unknown, scored, strict=True):
                values[row] = value
                if value is not None and self.reward.version == version:
                    self._cache.put(keys[row], value)
        return values

    async def _score(
        self, completions: Sequence[Any], columns: dict[str, Any], counters: RewardCounters
    ) -> list[float | None]:
        steps = self._plan.steps(completions, columns, counters)
        outcomes: Any = None
        while True:
            try:
                calls = steps.send(outcomes)
            except StopIteration as finished:
                return finished.value  # type: ignore[no-any-return]
            outcomes = await self._run_all(calls, counters)

    async def _run_all(self, calls: list[Call], counters: RewardCounters) -> list[Outcome]:
        """Together; what one of them raises ends the others."""
        if len(calls) == 1:
            return [await self._run(calls[0], counters)]
        tasks = [asyncio.ensure_future(self._run(call, counters)) for call in calls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _run(self, call: Call, counters: RewardCounters) -> Outcome:
        tokens = _num_tokens(call)
        for retry in range(MAX_RETRIES + 1):
            async with self._gate.passed(tokens):
                outcome = await self.execution.run(call, self._settings.limit_s)
            failure = outcome.failure
            if failure is None or not failure.may_pass or retry == MAX_RETRIES:
                return outcome
            counters.retries += 1
            wait_s = min(BACKOFF_S * 2.0**retry, MAX_BACKOFF_S) * (1 - self._chance() / 2)
            await self._clock.sleep(max(wait_s, failure.retry_after_s or 0.0))
        raise AssertionError("unreachable")


def _of_row(columns: dict[str, Any], row: int) -> dict[str, Any]:
    return {name: value[row] if isinstance(value, list | tuple) else value for name, value in columns.items()}


def _of_rows(columns: dict[str, Any], rows: list[int]) -> dict[str, Any]:
    return {
        name: [value[row] for row in rows] if isinstance(value, list | tuple) else value
        for name, value in columns.items()
    }


def _num_tokens(call: Call) -> float:
    """About as many as the call has; exact numbers are the server's."""
    texts = [call.first, call.columns.get("messages", "")]
    return sum(map(_num_characters, texts)) / CHARACTERS_A_TOKEN


def _num_characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_num_characters, value.values()))
    return sum(map(_num_characters, value)) if isinstance(value, list | tuple) else 0
