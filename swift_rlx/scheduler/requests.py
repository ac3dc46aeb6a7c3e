"""One attempt at one request. Every attempt ends: with an answer or with a `BackendError`.

Or with a `ConfigError`, which ends the run: what the user asked for cannot be done by any worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from swift_rlx.backends.base import Backend, GenerationRequest
from swift_rlx.backends.progress import Draft, OnProgress
from swift_rlx.errors import BackendError, BackendTimeout, BackendUnavailable, ConfigError
from swift_rlx.scheduler.groups import OpenGroup
from swift_rlx.scheduler.inflight import Mark
from swift_rlx.scheduler.routing import Load
from swift_rlx.scheduler.time_limits import TimeLimit
from swift_rlx.types import Completion

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Job:
    """A completion to be made: its group and member, and what happened to it so far."""

    group: OpenGroup
    member: int
    load: Load
    held: Load = field(init=False)
    """What its slot was taken for, and will be given back for."""
    attempt: int = 1
    avoid: set[str] = field(default_factory=set)
    """Workers on which it failed."""
    draft: Draft = field(default_factory=Draft)
    """What it has of its answer; all of it is booked as in flight."""
    draft_submit_s: float = 0.0
    """When the attempt was submitted that made the first token of the draft."""
    kept: int = 0
    """How many of its tokens come from earlier attempts."""
    furthest: int = 0
    """The most tokens that it ever had at the end of an attempt."""
    is_away: bool = False
    """It is with its environment, not with the worker."""
    blame: int | None = None
    """How many attempts the death of its worker uses up; None: the worker lives, or nobody has looked yet."""
    deaths: int = 0
    """Of workers that it was on, without getting anywhere; those that have used up attempts do not count."""
    is_silent: bool = False
    """It is on a worker, and the attempt has made no token yet."""
    timeouts: int = 0
    """How often it took too long."""
    is_being_cut: bool = False
    """Whether we told the backend to end it."""
    mark: Mark | None = None
    """Of the attempt, for the worker's pace."""
    was_cut: bool = False
    """Whether its tokens were thrown away once, at a publish by `abort`."""

    def __post_init__(self) -> None:
        self.held = self.load

    @property
    def has_progressed(self) -> bool:
        """Whether the attempt got further than any before it."""
        return self.draft.num_tokens > self.furthest


async def abort_requests(backend: Backend, request_ids: tuple[str, ...]) -> None:
    """Ask a backend to end requests. A failure to do so is covered by the time limit of each of them."""
    try:
        await backend.abort(request_ids)
    except Exception:  # noqa: BLE001 (foreign code; see above)
        return


async def attempt(
    backend: Backend, request: GenerationRequest, limit: TimeLimit, on_progress: OnProgress
) -> Completion:
    """The answer of one attempt, within a limit that was started; one that it ended in time is ABORT and no error.

    Raises `BackendTimeout` where it did not end in the grace, and what else the backend raises as a `BackendError` or
    `ConfigError`.
    """
    try:
        completion = await backend.generate(request, on_progress)
        limit.told(is_away=False)
        return completion
    except (BackendError, ConfigError):
        raise
    except asyncio.CancelledError:
        if limit.reason is not None:
            raise BackendTimeout(limit.reason) from None
        raise
    except Exception as error:
        raise BackendUnavailable(f"worker '{backend.name}' raised {type(error).__name__}: {error}") from error
    finally:
        limit.stop()


async def within(limit_s: float, coroutine: Coroutine[Any, Any, Result], what: str) -> Result:
    """The result of a backend's call. Raises `BackendTimeout` naming `what` after `limit_s`.

    Before Python 3.12 `asyncio.wait_for` loses a cancellation that comes as the call ends; who asks a worker again and
    again would not end with the run then.
    """
    call = asyncio.ensure_future(coroutine)
    try:
        if (await asyncio.wait({call}, timeout=limit_s))[0]:
            return call.result()
        raise BackendTimeout(f"waited {limit_s:g} s for {what}, in vain")
    except (asyncio.TimeoutError, TimeoutError) as error:
        if isinstance(error, BackendError):
            raise
        raise BackendTimeout(f"waited {limit_s:g} s for {what}, in vain") from None
    finally:
        if not call.done():
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
