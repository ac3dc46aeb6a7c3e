"""Notices a reward that sets an alarm outside of the main thread, where Python refuses it.

Verifiers such as math-verify limit their time by SIGALRM. Some report the refusal, others hide it and call every answer
wrong; so it is not left to them. The call that wants an alarm is ended by `AlarmRefused`, and its outcome is dropped.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


class AlarmRefused(BaseException):
    """Ends a reward's call that wanted an alarm; no `Exception`, so that a reward does not take it for its own."""


@dataclass
class Notice:
    """Whether the call tried to set an alarm."""

    alarm: bool = False


_call: ContextVar[Notice | None] = ContextVar("call of a reward", default=None)


class AlarmWatch:
    """Watches the calls made within `noticing`, in any thread or task, while it is `installed`."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within the context, attempts of watched calls to set a handler of SIGALRM are noticed."""
        module: Any = signal._signal  # type: ignore[attr-defined]  # also what imported `signal.signal` goes through
        original = module.signal

        def watched(signalnum: Any, handler: Any) -> Any:
            notice = _call.get()
            is_main = threading.current_thread() is threading.main_thread()
            if notice is not None and signalnum == signal.SIGALRM and not is_main:
                notice.alarm = True
                raise AlarmRefused
            return original(signalnum, handler)

        module.signal = watched
        try:
            yield
        finally:
            module.signal = original

    @contextmanager
    def noticing(self) -> Iterator[Notice]:
        """The block is a call of a reward. Whatever it raises because of a refused alarm goes no further."""
        notice = Notice()
        token = _call.set(notice)
        try:
            yield notice
        except (AlarmRefused, Exception):
            if notice.alarm:
                return
            raise
        finally:
            _call.reset(token)
