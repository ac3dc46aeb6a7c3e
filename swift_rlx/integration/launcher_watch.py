"""The training ends with the `swift rlhf` command that started it.

That command starts the training as a child process, waits for it, and passes no signal on: ended by SIGTERM, as process
managers do, or by SIGKILL, it would leave the training behind. So the training waits for the end of the command, and
then sends SIGTERM to itself.

    swift rlhf --> training                       swift rlhf --> torchrun --> training, on each rank

The end is read from a pidfd. The kernel's parent-death signal would tell of the end of the thread that started the
process, and not of a command behind torchrun. Who was started by anything else is not watched: a shell, torchrun,
deepspeed or Ray may go before the training.
"""

import os
import select
import signal
import threading
from collections.abc import Sequence
from itertools import pairwise

COMMAND = "rlhf"
TORCHRUN = "torch.distributed.run"
_watched: set[int] = set()
"""The process that watches; one that was forked from it does not."""
_found: dict[int, int | None] = {}
"""By process: what `find_launcher` found."""


def find_launcher() -> int | None:
    """A pidfd of the `swift rlhf` command that started this process; None: something else did.

    Looked for once. Who asks early notices later that the command has ended meanwhile.
    """
    if os.getpid() not in _found:
        _found[os.getpid()] = _launcher()
    return _found[os.getpid()]


def end_with_launcher() -> bool:
    """Have SIGTERM sent to this process when its `swift rlhf` command has ended; whether there is one.

    A second call does nothing more.
    """
    if os.getpid() in _watched:
        return True
    handle = find_launcher()
    if handle is None:
        return False
    _watched.add(os.getpid())
    threading.Thread(target=_wait, args=(handle,), name="launcher", daemon=True).start()
    return True


def _launcher() -> int | None:
    """A pidfd of the command that started this process, itself or by torchrun."""
    child, parent = os.getpid(), os.getppid()
    if TORCHRUN in _words(parent):
        child, parent = parent, _parent(parent)
    if not is_launcher(_words(parent)):
        return None
    try:
        handle = os.pidfd_open(parent)
    except (
        OSError,
        AttributeError,
    ):  # it has ended, or is out of sight; a system or an interpreter without pidfds
        return None
    if is_launcher(_words(parent)) and _parent(child) == parent:  # of the process in the handle
        return handle
    os.close(handle)
    return None


def is_launcher(words: Sequence[str]) -> bool:
    """Whether a process with these words on its command line is `swift rlhf`."""
    return any(
        (os.path.basename(word) == "swift" or word == "swift.cli.main" or word.endswith("swift/cli/main.py"))
        and following == COMMAND
        for word, following in pairwise(words)
    )


def _words(process: int) -> list[str]:
    try:
        with open(f"/proc/{process}/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read().split("\0")
    except OSError:
        return []


def _parent(process: int) -> int:
    """Number of its parent; 0: it has ended, or has none."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _wait(handle: int) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)
