"""A rollout backend that tells the monitor what it does."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from swift_rlx.errors import BackendError
from swift_rlx.monitors.monitor import Monitor
from swift_rlx.types import Chunk, Completion, PolicyVersion


class WatchedBackend:
    """Hands every call on to `backend` (`swift_rlx.backends.Backend`), and reports answers, failures and publishes.

    `now`: the run's clock. A call that is cancelled is not reported.
    """

    def __init__(self, backend: Any, monitor: Monitor, now: Callable[[], float]) -> None:
        self._backend = backend
        self._monitor = monitor
        self._now = now

    @property
    def name(self) -> str:
        """The backend's."""
        return str(self._backend.name)

    @property
    def capabilities(self) -> Any:
        """The backend's."""
        return self._backend.capabilities

    async def generate(
        self, request: Any, on_progress: Callable[[Chunk], None] = lambda chunk: None
    ) -> Completion:
        """The backend's answer."""
        label, begin_s = (
            f"prompt {request.prompt.epoch}/{request.prompt.index} #{request.member}",
            self._now(),
        )
        try:
            completion: Completion = await self._backend.generate(request, on_progress)
        except BackendError as error:
            self._monitor.failed(self.name, begin_s, self._now(), f"{label}: {type(error).__name__}")
            raise
        self._monitor.completion(completion, label)
        return completion

    async def abort(self, request_ids: Collection[str]) -> None:
        """Hand on."""
        await self._backend.abort(request_ids)

    async def publish(self, version: PolicyVersion, payload: object) -> None:
        """Hand on, and report how long it took."""
        begin_s = self._now()
        await self._backend.publish(version, payload)
        self._monitor.published(version, begin_s, self._now(), self.name)

    async def health(self) -> Any:
        """Hand on."""
        return await self._backend.health()

    async def close(self) -> None:
        """Hand on."""
        await self._backend.close()
