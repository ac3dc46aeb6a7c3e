"""A reward as the trainer calls it: exact shape, finite numbers, failures attributed to their rows.

Invariants
- The result has one entry per completion: a float that is finite in float32, or None for an unscored row.
- A wrong length or type is the reward's programming error and always raised. An exception or a value that is
  not finite follows the policy (`OnError`).
- Synchronous rewards run on the calling thread, so that verifiers that set SIGALRM work, and one call after the other:
  a call from another thread waits.
- KeyboardInterrupt, SystemExit, a cancelled task and a refused alarm pass through.
"""

import asyncio
import logging
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from swift_rlx.errors import RewardError
from swift_rlx.registry import one_line
from swift_rlx.rewards.alarm_watch import AlarmRefused
from swift_rlx.rewards.batch import Call, RewardBatch
from swift_rlx.rewards.on_error import RAISE, OnError
from swift_rlx.rewards.spec import Reward, RewardSpec
from swift_rlx.rewards.values import NotAReward, drain, entries, number

logger = logging.getLogger(__name__)

_LARGEST = torch.finfo(torch.float32).max  # ms-swift keeps rewards in float32
_HERE = Path(__file__).parent
_PASS_THROUGH = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, AlarmRefused)
_LOOK_S = 0.5
"""How often a waiting call looks whether the one before it was left behind."""


@dataclass
class RewardCounters:
    """What happened since the counters were last taken.

    calls: of this object, one per batch. rows: completions scored. failures: rows whose reward raised, by
    exception type. non_finite: rows with NaN or infinity. none: rows handed on as unscored, for whatever
    reason.
    """

    calls: int = 0
    rows: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    non_finite: int = 0
    none: int = 0

    @property
    def failed(self) -> int:
        """Rows that got no number of the reward's own."""
        return sum(self.failures.values()) + self.non_finite


@dataclass(frozen=True)
class _Attempt:
    """What one call of the function gave: what it returned, or what it raised."""

    returned: Any = None
    error: BaseException | None = None


_Plan = Generator[list[Call], list[_Attempt], list[float | None]]


class _Scoring:
    """The steps of scoring a batch, whoever carries out the calls: `_plan` yields calls, is sent attempts."""

    def __init__(self, reward: Reward, on_error: OnError = RAISE) -> None:
        self.spec: RewardSpec = reward.spec
        self.on_error = on_error
        self.counters = RewardCounters()
        self._function: Callable[..., Any] = reward.build()
        self._warned: set[tuple[Any, ...]] = set()

    @property
    def name(self) -> str:
        return self.spec.name

    def take_counters(self) -> RewardCounters:
        """The counters so far; they start again at zero."""
        taken, self.counters = self.counters, RewardCounters()
        return taken

    def _plan(self, completions: Sequence[Any], columns: dict[str, Any], counters: RewardCounters) -> _Plan:
        batch = RewardBatch(self.spec, completions, columns)
        rows = range(len(batch))
        counters.calls += 1
        counters.rows += len(rows)
        if not rows:
            return []
        if self.spec.per_completion:
            attempts = yield [batch.single(row) for row in rows]
        else:
            [whole] = yield [batch.whole()]
            if whole.error is None:
                attempts = [_Attempt(entry) for entry in self._entries(whole.returned, len(rows))]
            elif len(rows) == 1:
                attempts = [whole]
            elif self.spec.scope == "batch":
                attempts = self._blame_the_batch(batch, whole.error)
            else:
                attempts = yield [batch.slice_of(row) for row in rows]
                attempts = self._blame_rows(batch, attempts, whole.error)
        scores = [self._score(batch, row, attempt, counters) for row, attempt in enumerate(attempts)]
        counters.none += scores.count(None)
        return scores

    def _blame_the_batch(self, batch: RewardBatch, error: BaseException) -> list[_Attempt]:
        if self.on_error.raises:
            raise RewardError(f"{self.spec.label} {_told(error)} on a batch of {len(batch)}") from error
        return [_Attempt(error=error)] * len(batch)

    def _blame_rows(self, batch: RewardBatch, alone: list[_Attempt], error: BaseException) -> list[_Attempt]:
        if self.on_error.raises and not any(attempt.error is not None for attempt in alone):
            raise RewardError(
                f"{self.spec.label} {_told(error)} on a batch of {len(batch)}, but on none of its rows alone"
            ) from error
        return [row if row.error is not None else _Attempt(*self._entries(row.returned, 1)) for row in alone]

    def _entries(self, returned: Any, num_rows: int) -> list[Any]:
        try:
            return entries(returned, num_rows)
        except NotAReward as refusal:
            raise RewardError(f"{self.spec.label} {refusal}") from None

    def _score(
        self, batch: RewardBatch, row: int, attempt: _Attempt, counters: RewardCounters
    ) -> float | None:
        if attempt.error is not None:
            counters.failures[type(attempt.error).__name__] += 1
            return self._failed(batch, row, _told(attempt.error), _cause(attempt.error), attempt.error)
        try:
            value = number(attempt.returned)
        except NotAReward as refusal:
            raise RewardError(f"{self.spec.label} {refusal}, on {batch.describe(row)}") from None
        if value is None or abs(value) <= _LARGEST:  # false for NaN
            return value
        counters.non_finite += 1
        return self._failed(batch, row, f"returned {value}", ("not finite",), None)

    def _failed(
        self, batch: RewardBatch, row: int, what: str, cause: tuple[Any, ...], error: BaseException | None
    ) -> float | None:
        if self.on_error.raises:
            raise RewardError(
                f"{self.spec.label} {what} on {batch.describe(row)}; --reward_on_error none leaves such a "
                "row unscored"
            ) from error
        if cause not in self._warned:
            self._warned.add(cause)
            given = "is unscored" if self.on_error.value is None else f"gets {self.on_error.value:g}"
            logger.warning(
                "%s %s on %s; the row %s, further ones like it are only counted",
                self.spec.label, what, batch.describe(row), given,
            )  # fmt: skip
        return self.on_error.value


class _Turn:
    """One call of a reward at a time: the user's state is not made for several threads.

    Of a copy, pickled or not, the state is another, and so is the turn.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Turn, ()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Waits for the call in progress, unless that is left."""
        while not (lock := self._lock).acquire(timeout=_LOOK_S):
            pass  # another lock may have taken its place
        try:
            yield
        finally:
            lock.release()

    def leave(self) -> None:
        """The next call does not wait for the one in progress."""
        self._lock = threading.RLock()


class CheckedReward(_Scoring):
    """A synchronous reward; see the module. Raises RewardError.

    Columns that the reward does not accept are left out. Completions are passed on as they are: a string, or
    for some multimodal and agent templates a list of content parts.
    """

    def __init__(self, reward: Reward, on_error: OnError = RAISE) -> None:
        super().__init__(reward, on_error)
        self._turn = _Turn()

    def __call__(self, completions: Sequence[Any], /, **columns: Any) -> list[float | None]:
        return self.score(completions, columns, self.counters)

    def score(
        self, completions: Sequence[Any], columns: dict[str, Any], counters: RewardCounters
    ) -> list[float | None]:
        """As a call, but counted in `counters`."""
        with self._turn.taken():
            plan = self._plan(completions, columns, counters)
            attempts: Any = None
            while True:
                try:
                    calls = plan.send(attempts)
                except StopIteration as finished:
                    return finished.value  # type: ignore[no-any-return]
                attempts = []
                for call in calls:
                    attempts.append(self._attempt(call))
                    if attempts[-1].error is not None and self.on_error.raises:
                        break

    def leave_behind(self) -> None:
        """The call in progress hangs: calls that follow do not wait for its end."""
        self._turn.leave()

    def _attempt(self, call: Call) -> _Attempt:
        try:
            return _Attempt(drain(self._function(call.first, **call.columns), call.num_rows))
        except _PASS_THROUGH:
            raise
        except BaseException as error:  # noqa: BLE001 - math-verify's timeout derives from BaseException
            return _Attempt(error=error)


class AsyncCheckedReward(_Scoring):
    """An asynchronous reward; ms-swift awaits several of them together. Raises RewardError.

    Calls for single completions run concurrently.
    """

    async def __call__(self, completions: Sequence[Any], /, **columns: Any) -> list[float | None]:
        return await self.score(completions, columns, self.counters)

    async def score(
        self, completions: Sequence[Any], columns: dict[str, Any], counters: RewardCounters
    ) -> list[float | None]:
        """As a call, but counted in `counters`."""
        plan = self._plan(completions, columns, counters)
        attempts: Any = None
        while True:
            try:
                calls = plan.send(attempts)
            except StopIteration as finished:
                return finished.value  # type: ignore[no-any-return]
            attempts = await asyncio.gather(*map(self._attempt, calls))

    async def _attempt(self, call: Call) -> _Attempt:
        try:
            return _Attempt(drain(await self._function(call.first, **call.columns), call.num_rows))
        except _PASS_THROUGH:
            raise
        except BaseException as error:  # noqa: BLE001 - math-verify's timeout derives from BaseException
            return _Attempt(error=error)


def checked_reward(reward: Reward, on_error: OnError = RAISE) -> CheckedReward | AsyncCheckedReward:
    """What the trainer hands to ms-swift in place of the reward's function: the class is constructed here."""
    return AsyncCheckedReward(reward, on_error) if reward.spec.is_async else CheckedReward(reward, on_error)


def _cause(error: BaseException) -> tuple[Any, ...]:
    """What makes two failures one cause: the type of the error and the line of the reward that raised it."""
    return (type(error), _raised_at(error))


def _told(error: BaseException) -> str:
    """The error and where in the reward it came up: a message is often shown without its traceback."""
    place = _raised_at(error)
    return f"raised {one_line(error)}" + (f" in {place[0]}:{place[1]}" if place else "")


def _raised_at(error: BaseException) -> tuple[str, int] | None:
    """Path and line in the reward's own file, not in what it calls; None where the call itself was
    refused."""
    lines = [
        (frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if Path(frame.f_code.co_filename).parent != _HERE
    ]
    return next((line for line in reversed(lines) if line[0] == lines[0][0]), None)
