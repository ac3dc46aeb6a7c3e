"""The watch over a server that has requests: one that is silent is not waited for.

Servers answer small questions while they generate. One that does not is stopped, hangs, or is cut off without a word
of its connections; its answers would be waited for until the time limit of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from swift_rlx.errors import BackendUnavailable

ASK_S = 2.0
"""Between two questions to a server."""
HTTP_SILENCE_S = 8.0
"""How long its HTTP interface may take for one."""
ENGINE_SILENCE_S = 25.0
"""How long its engine may, which answers between two steps."""


@dataclass(frozen=True, slots=True)
class Question:
    """`ask` makes the call; an answer, even an error, within `limit_s` is a sign of life. `whom`: for the message."""

    ask: Callable[[], Awaitable[object]]
    limit_s: float
    whom: str


class SilenceWatch:
    """Puts the questions to a server, one after the other, as long as `is_needed`, but not while it `is_busy`.

    `on_silence` is told when one was not answered in time. In one asyncio loop.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        is_needed: Callable[[], bool],
        is_busy: Callable[[], bool],
        on_silence: Callable[[BackendUnavailable], None],
    ) -> None:
        self._questions = questions
        self._is_needed = is_needed
        self._is_busy = is_busy
        self._on_silence = on_silence
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """There is something to wait for."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(ASK_S)
            if not self._is_needed():
                return
            for question in self._questions:
                if not self._is_busy():
                    await self._put(question)

    async def _put(self, question: Question) -> None:
        asking = asyncio.ensure_future(question.ask())
        asking.add_done_callback(lambda one: one.cancelled() or one.exception())
        try:
            await asyncio.wait({asking}, timeout=question.limit_s)
        finally:
            is_silent = asking.cancel()
        if is_silent and not self._is_busy():
            self._on_silence(
                BackendUnavailable(
                    f"{question.whom} has said nothing for {question.limit_s:g} s: it hangs, or is stopped"
                )
            )
