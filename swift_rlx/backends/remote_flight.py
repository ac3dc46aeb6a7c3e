"""A request on its way to a server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from swift_rlx.backends.remote_answer import Expected
from swift_rlx.backends.remote_dialect import Generation
from swift_rlx.backends.remote_http import Call, Reply
from swift_rlx.backends.remote_stream import StreamedAnswer
from swift_rlx.errors import BackendError
from swift_rlx.types import Chunk, PolicyVersion


@dataclass(eq=False, slots=True)
class Flight:
    """A request. `behind`: the tokens of earlier attempts that its answer begins with; `stream`: what came of the rest.

    `has_begun`: the server may know it.
    """

    one: Generation
    call: Call
    expected: Expected
    stream: StreamedAnswer
    behind: Chunk | None = None
    has_begun: bool = False
    is_aborted: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[Reply] | None = None
    _failure: BackendError | None = None

    @property
    def served(self) -> PolicyVersion:
        """The version that it began with."""
        return self.expected.served

    async def reply(self, fetching: Coroutine[Any, Any, Reply]) -> Reply | None:
        """What the server replies; None: it was aborted before it was sent. Raises what it was failed with."""
        task = self._task = asyncio.get_running_loop().create_task(fetching)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.cancelled():
            return task.result()
        if self._failure is not None:
            raise self._failure
        return None

    def abort(self) -> None:
        """Do not send it any more; one that has begun has to be ended by the server."""
        self.is_aborted = True
        if self._task is not None and not self.has_begun:
            self._task.cancel()

    def fail(self, error: BackendError) -> None:
        """Wait for it no longer."""
        if self._task is not None and not self._task.done():
            self._failure = error
            self._task.cancel()
