"""What one call of a reward's function gave, as plain data: the same in this thread and in another process."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from swift_rlx.registry import one_line
from swift_rlx.rewards.alarm_watch import AlarmRefused
from swift_rlx.rewards.batch import Call
from swift_rlx.rewards.transient import is_transient, retry_after_s
from swift_rlx.rewards.values import NotAReward, drain, entries, number

PASS_THROUGH = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, AlarmRefused)
"""What a call may be ended by without that being a failure of the reward."""
OVER_LIMIT, PROCESS_ENDED = "TimeLimit", "ProcessEnded"
"""Kinds of failures beside the names of exception types."""
_HERE = Path(__file__).parent


class Fault(Enum):
    """Who is to blame for a failure, which decides what the row gets (`OnError`)."""

    REWARD = "reward"
    """The function raised."""
    LIMIT = "limit"
    """It took longer than its time limit, most likely because of what the completion says."""
    INFRASTRUCTURE = "infrastructure"
    """A network, a server or a process of ours; it says nothing about the completion."""


@dataclass(frozen=True)
class Failure:
    """Why there are no values.

    kind: type of the error. told: a verb and what happened, for a message. place: path and line in the reward's file.
    may_pass: worth another try, at the earliest after `retry_after_s`.
    """

    kind: str
    told: str
    fault: Fault = Fault.REWARD
    place: tuple[str, int] | None = None
    may_pass: bool = False
    retry_after_s: float | None = None

    @property
    def cause(self) -> tuple[Any, ...]:
        """Equal for two failures of one cause: of that type, raised in that line."""
        return (self.kind, self.place)

    @classmethod
    def of(cls, error: BaseException, is_async: bool = False) -> Failure:
        """Of what a reward's function raised."""
        place, passes = _raised_at(error), is_transient(error, is_async)
        return cls(
            kind=type(error).__name__,
            told=f"raised {one_line(error)}" + (f" in {place[0]}:{place[1]}" if place else ""),
            fault=Fault.INFRASTRUCTURE if passes else Fault.REWARD,
            place=place,
            may_pass=passes,
            retry_after_s=retry_after_s(error) if passes else None,
        )

    @classmethod
    def over_limit(cls, limit_s: float) -> Failure:
        """Of a call that was ended after `limit_s` seconds."""
        return cls(
            OVER_LIMIT, f"took longer than {limit_s:g} s (--reward_timeout_s) and was ended", Fault.LIMIT
        )

    @classmethod
    def process_ended(cls, how: str) -> Failure:
        """Of a call whose process ended with it; the next try gets a new process."""
        return cls(PROCESS_ENDED, f"lost its process, which {how}", Fault.INFRASTRUCTURE, may_pass=True)


@dataclass(frozen=True)
class Refusal:
    """What was returned is no reward: a mistake in the program. row: of the call; None where it is the whole."""

    text: str
    row: int | None = None


@dataclass(frozen=True)
class Outcome:
    """One of the three: `values`, one a row of the call, or a `refusal`, or a `failure` (with its `error`, if here)."""

    values: tuple[float | None, ...] | None = None
    refusal: Refusal | None = None
    failure: Failure | None = None
    error: BaseException | None = None

    @classmethod
    def of(cls, returned: Any, call: Call) -> Outcome:
        """Of what the function returned, checked: a number or None for each row, possibly not finite."""
        try:
            rows = [returned] if call.is_single else entries(returned, call.num_rows)
        except NotAReward as refusal:
            return cls(refusal=Refusal(str(refusal)))
        values: list[float | None] = []
        for entry in rows:
            try:
                values.append(number(entry))
            except NotAReward as refusal:
                return cls(refusal=Refusal(str(refusal), len(values)))
        return cls(values=tuple(values))

    @classmethod
    def raised(cls, error: BaseException, is_async: bool = False) -> Outcome:
        """Of what the function raised."""
        return cls(failure=Failure.of(error, is_async), error=error)

    def alone(self, row: int) -> Outcome:
        """One row of `values`."""
        assert self.values is not None
        return Outcome(values=(self.values[row],))


def attempt(function: Callable[..., Any], call: Call) -> Outcome:
    """Call a synchronous function. Raises nothing but `PASS_THROUGH`."""
    try:
        returned = drain(function(call.first, **call.columns), call.num_rows)
    except PASS_THROUGH:
        raise
    except BaseException as error:  # noqa: BLE001 - math-verify's timeout derives from BaseException
        return Outcome.raised(error)
    return Outcome.of(returned, call)


async def attempt_async(function: Callable[..., Any], call: Call) -> Outcome:
    """Call and await an asynchronous function. Raises nothing but `PASS_THROUGH`."""
    try:
        returned = drain(await function(call.first, **call.columns), call.num_rows)
    except PASS_THROUGH:
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        return Outcome.raised(error, is_async=True)
    return Outcome.of(returned, call)


def _raised_at(error: BaseException) -> tuple[str, int] | None:
    """Path and line in the reward's own file, not in what it calls; None where the call itself was refused."""
    lines = [
        (frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if Path(frame.f_code.co_filename).parent != _HERE
    ]
    return next((line for line in reversed(lines) if line[0] == lines[0][0]), None)
