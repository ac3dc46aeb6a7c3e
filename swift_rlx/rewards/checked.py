"""A reward as a plain callable: exact shape, finite numbers, failures attributed to their rows.

- Synchronous rewards run on the calling thread, so that verifiers that set SIGALRM work, and one call after the other:
  a call from another thread waits.
- KeyboardInterrupt, SystemExit, a cancelled task and a refused alarm pass through.

What the rows get is `scoring_plan`'s to say. Time limits and processes are `runner`'s.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from swift_rlx.rewards.batch import Call
from swift_rlx.rewards.counters import RewardCounters
from swift_rlx.rewards.on_error import RAISE, OnError
from swift_rlx.rewards.outcome import Outcome, attempt, attempt_async
from swift_rlx.rewards.scoring_plan import ScoringPlan
from swift_rlx.rewards.spec import Reward, RewardSpec

_LOOK_S = 0.5
"""How often a waiting call looks whether the one before it was left behind."""


class _Scoring:
    """What both kinds have; the reward is constructed here."""

    def __init__(self, reward: Reward, on_error: OnError = RAISE) -> None:
        self.spec: RewardSpec = reward.spec
        self.counters = RewardCounters()
        self._function: Callable[..., Any] = reward.build()
        self._plan = ScoringPlan(reward.spec, on_error)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def on_error(self) -> OnError:
        return self._plan.on_error

    def take_counters(self) -> RewardCounters:
        """The counters so far; they start again at zero."""
        taken, self.counters = self.counters, RewardCounters()
        return taken


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
        steps = self._plan.steps(completions, columns, self.counters)
        outcomes: Any = None
        with self._turn.taken():
            while True:
                try:
                    calls = steps.send(outcomes)
                except StopIteration as finished:
                    return finished.value  # type: ignore[no-any-return]
                outcomes = []
                for call in calls:
                    outcomes.append(attempt(self._function, call))
                    if self._plan.ends_at(outcomes[-1]):
                        break

    def attempt(self, call: Call) -> Outcome:
        """One call of the function, in turn."""
        with self._turn.taken():
            return attempt(self._function, call)

    def attempt_with_others(self, call: Call) -> Outcome:
        """One call of the function, whoever else calls it: for rewards that are `thread_safe`."""
        return attempt(self._function, call)

    def leave_behind(self) -> None:
        """The call in progress hangs: calls that follow do not wait for its end."""
        self._turn.leave()


class AsyncCheckedReward(_Scoring):
    """An asynchronous reward; ms-swift awaits several of them together. Raises RewardError.

    Calls for single completions run concurrently.
    """

    async def __call__(self, completions: Sequence[Any], /, **columns: Any) -> list[float | None]:
        steps = self._plan.steps(completions, columns, self.counters)
        outcomes: Any = None
        while True:
            try:
                calls = steps.send(outcomes)
            except StopIteration as finished:
                return finished.value  # type: ignore[no-any-return]
            outcomes = await asyncio.gather(*(self.attempt(call) for call in calls))

    async def attempt(self, call: Call) -> Outcome:
        """One call of the function."""
        return await attempt_async(self._function, call)


def checked_reward(reward: Reward, on_error: OnError = RAISE) -> CheckedReward | AsyncCheckedReward:
    """What ms-swift is handed in place of the reward's function: the class is constructed here."""
    return AsyncCheckedReward(reward, on_error) if reward.spec.is_async else CheckedReward(reward, on_error)
