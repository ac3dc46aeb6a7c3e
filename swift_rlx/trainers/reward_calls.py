"""Calls of a reward beside the training: a coroutine in the pipeline's loop, or a thread that is the reward's alone.

Both have `score(answers, columns)`, to be awaited in the loop, and `close()`. A cancelled `score` ends at once,
whatever the reward does.
"""

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from swift_rlx.rewards import AlarmWatch, AsyncCheckedReward, CheckedReward, RewardCounters


@dataclass(frozen=True)
class Scored:
    """What a call gave. `values`: None where the reward `needs_main_thread`; then `counters` mean nothing either."""

    values: list[float | None] | None
    counters: RewardCounters
    needs_main_thread: bool = False


class CoroutineCalls:
    """Many calls at a time."""

    def __init__(self, reward: AsyncCheckedReward, watch: AlarmWatch) -> None:
        self._reward = reward
        self._watch = watch

    async def score(self, answers: list[Any], columns: dict[str, Any]) -> Scored:
        """Raises RewardError."""
        values, counters = None, RewardCounters()
        with self._watch.noticing() as notice:
            values = await self._reward.score(answers, columns, counters)
        return Scored(None if notice.alarm else values, counters, notice.alarm)

    def close(self) -> None:
        """Nothing is left open."""


@dataclass(frozen=True)
class _Call:
    answers: list[Any]
    columns: dict[str, Any]
    result: "Future[Scored]" = field(default_factory=Future)


class ThreadCalls:
    """One call at a time, in the order in which they came.

    The thread is a daemon, unlike those of a `ThreadPoolExecutor`, which the interpreter joins at its end: a reward
    that hangs must not keep the process. A call that is cancelled while it runs is left behind with its thread, and
    the next one gets a new thread.
    """

    def __init__(self, reward: CheckedReward, watch: AlarmWatch) -> None:
        self._reward = reward
        self._watch = watch
        self._waiting: SimpleQueue[_Call | None] = SimpleQueue()
        self._has_thread = False

    async def score(self, answers: list[Any], columns: dict[str, Any]) -> Scored:
        """Raises RewardError."""
        call = _Call(answers, columns)
        self._waiting.put(call)
        self._start_thread()
        try:
            return await asyncio.wrap_future(call.result)
        except asyncio.CancelledError:
            if not call.result.cancel() and call.result.running():
                self._leave_behind()
            raise

    def close(self) -> None:
        """The thread ends after the call that it is at."""
        self._waiting.put(None)

    def _start_thread(self) -> None:
        if not self._has_thread:
            name = f"reward {self._reward.name}"
            threading.Thread(target=self._run, args=(self._waiting,), name=name, daemon=True).start()
            self._has_thread = True

    def _leave_behind(self) -> None:
        left, self._waiting = self._waiting, SimpleQueue()
        while True:
            try:
                self._waiting.put(left.get_nowait())
            except Empty:
                break
        left.put(None)
        self._reward.leave_behind()
        self._has_thread = False
        if not self._waiting.empty():
            self._start_thread()

    def _run(self, waiting: "SimpleQueue[_Call | None]") -> None:
        while (call := waiting.get()) is not None:
            if not call.result.set_running_or_notify_cancel():
                continue
            try:
                scored = self._attempt(call)
            except BaseException as error:  # noqa: BLE001 (the border of the thread: it is raised where it is awaited)
                call.result.set_exception(error)
            else:
                call.result.set_result(scored)

    def _attempt(self, call: _Call) -> Scored:
        values, counters = None, RewardCounters()
        with self._watch.noticing() as notice:
            values = self._reward.score(call.answers, call.columns, counters)
        return Scored(None if notice.alarm else values, counters, notice.alarm)


Calls = CoroutineCalls | ThreadCalls


def calls_of(reward: CheckedReward | AsyncCheckedReward, watch: AlarmWatch) -> Calls:
    """The kind of calls that fits the reward."""
    if isinstance(reward, AsyncCheckedReward):
        return CoroutineCalls(reward, watch)
    return ThreadCalls(reward, watch)
