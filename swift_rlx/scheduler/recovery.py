"""Workers that fail: ejected, asked from time to time, given the current weights, and readmitted.

The run ends with the last error once no worker has been well for `outage_limit_s`.
"""

from __future__ import annotations

from swift_rlx.errors import BackendError, BackendUnavailable, StalenessError
from swift_rlx.scheduler.requests import within
from swift_rlx.scheduler.routing import Worker, WorkerState
from swift_rlx.scheduler.state import RunState
from swift_rlx.types import PolicyVersion

HEALTH_LIMIT_S = 10.0


class Recovery:
    """Keeps the time since which nothing works, and brings workers back."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._failing_since: float | None = None

    def succeeded(self) -> None:
        """A worker gave an answer."""
        self._failing_since = None

    def failed(self, worker: Worker, error: BackendError, is_dead: bool) -> None:
        """A request failed by the worker's fault."""
        if self._state.router.failed(worker, is_dead):
            self._state.supervisor.spawn(self._bring_back(worker))
        self._note(error)

    def publish_failed(self, worker: Worker, error: BackendError) -> None:
        """The worker did not take weights; it may serve old ones, so it gets no request."""
        if worker.state is WorkerState.EJECTED:
            return
        self._state.router.eject(worker)
        self._state.supervisor.spawn(self._bring_back(worker))
        self._note(error)

    def _note(self, error: BackendError) -> None:
        state, now = self._state, self._state.clock.now()
        if not state.router.is_none_well:
            self._failing_since = None
            return
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= state.config.outage_limit_s:
            end = BackendUnavailable(
                f"no rollout worker has answered for {now - self._failing_since:.0f} s; the last error: {error}"
            )
            end.__cause__ = error
            state.supervisor.fail(end)

    async def _bring_back(self, worker: Worker) -> None:
        state = self._state
        while True:
            await state.clock.sleep(state.router.ejection_s(worker))
            try:
                await self._renew(worker)
            except BackendError as error:
                state.router.eject(worker)
                self._note(error)
                continue
            state.router.readmit(worker)
            state.events.generate.set()
            return

    async def _renew(self, worker: Worker) -> None:
        """Bring the worker to the version that the others serve, which may change meanwhile."""
        version = await served_version(worker)
        while version != (live := self._state.live):
            publishing = worker.backend.publish(live, self._state.live_payload)
            limit_s = self._state.config.publish_limit_s
            await within(limit_s, publishing, f"worker '{worker.name}' to take weights {live}")
            if (version := await served_version(worker)) != live:
                raise StalenessError(
                    f"worker '{worker.name}' took weights {live}, but says that it serves {version}"
                )
        worker.version = version


async def served_version(worker: Worker) -> PolicyVersion:
    """What the worker says that it serves. Raises `BackendError` where it does not answer."""
    asking = worker.backend.health()
    return (await within(HEALTH_LIMIT_S, asking, f"worker '{worker.name}' to say how it is")).version
