"""Where a call of a reward is carried out: in the event loop, or in threads; processes are `cluster.reward_pool`'s.

Each has `run(call, limit_s)`, to be awaited in one asyncio loop, which returns the outcome within the limit. What
takes longer is left behind, and no later call waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from swift_rlx.rewards.alarm_watch import AlarmRefused, AlarmWatch
from swift_rlx.rewards.batch import Call
from swift_rlx.rewards.checked import AsyncCheckedReward, CheckedReward
from swift_rlx.rewards.outcome import Failure, Outcome


class NeedsMainThread(Exception):
    """The reward sets an alarm, which only works in a main thread; its call had no outcome."""


class Execution(Protocol):
    """Carries calls out, as many at a time as it has places; the others wait, which counts for no limit."""

    async def run(self, call: Call, limit_s: float) -> Outcome:
        """The outcome. Raises `NeedsMainThread`."""

    def close(self) -> None:
        """No more calls. Does not wait for those that run."""


class LoopExecution:
    """An asynchronous reward, in the loop itself."""

    def __init__(self, reward: AsyncCheckedReward, watch: AlarmWatch) -> None:
        self._reward = reward
        self._watch = watch

    async def run(self, call: Call, limit_s: float) -> Outcome:
        try:
            return await asyncio.wait_for(self._attempt(call), limit_s)
        except (TimeoutError, asyncio.TimeoutError):
            return Outcome(failure=Failure.over_limit(limit_s))

    async def _attempt(self, call: Call) -> Outcome:
        with self._watch.noticing() as notice:
            outcome = await self._reward.attempt(call)
        if notice.alarm:
            raise NeedsMainThread
        return outcome

    def close(self) -> None:
        """Nothing is left open."""


class ThreadExecution:
    """A synchronous reward in `lanes` threads: one, unless the reward declares that it is `thread_safe`."""

    def __init__(self, reward: CheckedReward, watch: AlarmWatch, lanes: int = 1) -> None:
        self._reward = reward
        self._watch = watch
        self._places = asyncio.Semaphore(lanes)
        self._attempt = reward.attempt if lanes == 1 else reward.attempt_with_others
        self._idle: list[_Lane] = []

    async def run(self, call: Call, limit_s: float) -> Outcome:
        async with self._places:
            lane = self._idle.pop() if self._idle else _Lane(f"reward {self._reward.name}")
            try:
                outcome = await asyncio.wait_for(lane.run(partial(self._watched, call)), limit_s)
            except (TimeoutError, asyncio.TimeoutError):
                self._leave(lane)
                return Outcome(failure=Failure.over_limit(limit_s))
            except asyncio.CancelledError:
                self._leave(lane)
                raise
            except BaseException:
                self._idle.append(lane)
                raise
            self._idle.append(lane)
            return outcome

    def close(self) -> None:
        """The threads end after the calls that they are at."""
        for lane in self._idle:
            lane.leave()

    def _leave(self, lane: _Lane) -> None:
        lane.leave()
        self._reward.leave_behind()

    def _watched(self, call: Call) -> Outcome:
        with self._watch.noticing() as notice:
            outcome = self._attempt(call)
        if notice.alarm:
            raise NeedsMainThread
        return outcome


class _Lane:
    """A daemon thread for one call after the other.

    Unlike those of a `ThreadPoolExecutor`, which the interpreter joins at its end: a reward that hangs must not keep
    the process.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], Outcome], Future[Outcome]] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, job: Callable[[], Outcome]) -> Outcome:
        result: Future[Outcome] = Future()
        self._jobs.put((job, result))
        return await asyncio.wrap_future(result)

    def leave(self) -> None:
        """The thread ends after what it is at."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (taken := self._jobs.get()) is not None:
            job, result = taken
            if not result.set_running_or_notify_cancel():
                continue
            try:
                outcome = job()
            except (Exception, AlarmRefused, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 (raised where it is awaited)
                result.set_exception(error)
            else:
                result.set_result(outcome)
