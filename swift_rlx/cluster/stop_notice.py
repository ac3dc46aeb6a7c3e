"""What is said at once when a training is stopped by Ctrl-C or SIGTERM.

`swift rlhf` waits a quarter of a second after Ctrl-C and then kills the training, whose main thread may be in the
middle of a matrix product; SIGTERM ends it without a word of Python's. So the words come from a thread that the
signal wakes through a file descriptor, which happens in the signal handler of C, whatever the main thread does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

SAY_S = 2.0
"""How long the words may take before SIGTERM ends the process without them."""
_END = b"\0"
_open: set[StopNotice] = set()


class StopNotice:
    """Within the context the first Ctrl-C or SIGTERM calls `say` with its name, in another thread.

    What the signals do stays as it was: KeyboardInterrupt in the main thread, and the end of the process by SIGTERM.
    Nothing is done outside of the main thread, nor where another one has taken a signal or the descriptor over.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._reader = self._writer = -1
        self._thread: threading.Thread | None = None
        self._takes_sigterm = False
        self._has_said = False

    def __enter__(self) -> StopNotice:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._writer, False)
        taken = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if taken != -1:
            signal.set_wakeup_fd(taken)
            self._close_pipe()
            return self
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._leave_to_thread)
            self._takes_sigterm = True
        _open.add(self)
        self._thread = threading.Thread(target=self._listen, name="stop-notice", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is None:
            return
        self.forget()
        os.write(self._writer, _END)
        self._thread.join(SAY_S)
        self._thread = None
        self._close_pipe()

    def forget(self) -> None:
        """Give the signals back; also for a process that was forked from this one, and has its own end."""
        _open.discard(self)
        signal.set_wakeup_fd(-1)
        if self._takes_sigterm and signal.getsignal(signal.SIGTERM) == self._leave_to_thread:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _leave_to_thread(self, number: int, frame: Any) -> None:
        """Of SIGTERM, in the main thread, when it is back from C; the thread is told again.

        Somebody may have taken the descriptor over, as asyncio's `add_signal_handler` does.
        """
        os.write(self._writer, bytes([number]))

    def _listen(self) -> None:
        while (byte := os.read(self._reader, 1)) not in (_END, b""):
            if byte[0] == signal.SIGINT and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._say_once("Ctrl-C")
            elif byte[0] == signal.SIGTERM and signal.getsignal(signal.SIGTERM) == self._leave_to_thread:
                teller = threading.Thread(target=self._say_once, args=("SIGTERM",), daemon=True)
                teller.start()
                teller.join(SAY_S)
                _end_by(signal.SIGTERM)

    def _say_once(self, name: str) -> None:
        if not self._has_said:
            self._has_said = True
            self._say(name)

    def _close_pipe(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


def _end_by(number: int) -> None:
    """End the process as the signal does by default. Python's own way to its disposition is the main thread's alone."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(number, None)
    os.kill(os.getpid(), number)


def _forget_all() -> None:
    for notice in [*_open]:
        notice.forget()


os.register_at_fork(after_in_child=_forget_all)
