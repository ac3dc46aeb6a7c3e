"""One attempt at one request, with its time limit. Every attempt ends: with an answer or with a `BackendError`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from swift_rlx.backends.base import Backend, GenerationRequest
from swift_rlx.clock import Clock, Timer
from swift_rlx.errors import BackendError, BackendTimeout, BackendUnavailable
from swift_rlx.scheduler.groups import OpenGroup
from swift_rlx.scheduler.inflight import Mark
from swift_rlx.types import Completion

Result = TypeVar("Result")
Spawn = Callable[[Coroutine[Any, Any, None]], object]


@dataclass(slots=True, eq=False)
class Job:
    """A completion to be made: its group and member, and what happened to it so far."""

    group: OpenGroup
    member: int
    tokens: int
    """About how many tokens it will hold in flight, prompt included."""
    is_long: bool
    attempt: int = 1
    avoid: set[str] = field(default_factory=set)
    """Workers on which it failed."""
    is_being_cut: bool = False
    """Whether we told the backend to end it."""
    mark: Mark | None = None
    """Of the attempt, for the worker's pace."""
    was_cut: bool = False
    """Whether its tokens were thrown away once, at a publish by `abort`."""


class TimeLimit:
    """Ends an attempt that takes too long: first by asking the backend, after the grace by cancelling the call."""

    def __init__(self, backend: Backend, request_id: str, clock: Clock, spawn: Spawn, grace_s: float) -> None:
        self.is_over = False
        self._backend = backend
        self._request_id = request_id
        self._clock = clock
        self._spawn = spawn
        self._grace_s = grace_s
        self._task = asyncio.current_task()
        self._timer: Timer | None = None

    def start(self, limit_s: float) -> None:
        """The clock runs."""
        self._timer = self._clock.call_later(limit_s, self._expire)

    def stop(self) -> None:
        """The attempt has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self.is_over = True
        self._spawn(abort_requests(self._backend, (self._request_id,)))
        self._timer = self._clock.call_later(self._grace_s, self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def abort_requests(backend: Backend, request_ids: tuple[str, ...]) -> None:
    """Ask a backend to end requests. A failure to do so is covered by the time limit of each of them."""
    try:
        await backend.abort(request_ids)
    except Exception:  # noqa: BLE001 (foreign code; see above)
        return


async def attempt(
    backend: Backend, request: GenerationRequest, limit: TimeLimit, limit_s: float
) -> Completion:
    """The answer of one attempt.

    Raises `BackendTimeout` after `limit_s`, and what else the backend raises as a `BackendError`.
    """
    limit.start(limit_s)
    try:
        completion = await backend.generate(request)
    except BackendError:
        raise
    except asyncio.CancelledError:
        if limit.is_over:
            raise _too_long(backend, request, limit_s) from None
        raise
    except Exception as error:
        raise BackendUnavailable(f"worker '{backend.name}' raised {type(error).__name__}: {error}") from error
    finally:
        limit.stop()
    if limit.is_over:
        raise _too_long(backend, request, limit_s).losing(completion.num_sampled)
    return completion


async def within(limit_s: float, coroutine: Coroutine[Any, Any, Result], what: str) -> Result:
    """The result of a backend's call. Raises `BackendTimeout` naming `what` after `limit_s`."""
    try:
        return await asyncio.wait_for(coroutine, limit_s)
    except (asyncio.TimeoutError, TimeoutError) as error:
        if isinstance(error, BackendError):
            raise
        raise BackendTimeout(f"waited {limit_s:g} s for {what}, in vain") from None


def _too_long(backend: Backend, request: GenerationRequest, limit_s: float) -> BackendTimeout:
    return BackendTimeout(
        f"worker '{backend.name}' gave no answer to request {request.request_id} within {limit_s:g} s"
    )
