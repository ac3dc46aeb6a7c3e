"""A program for tests, one rank of two: a first training fails on rank 0, a second one goes on.

Prints what this rank got in each.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from swift_rlx.errors import RlxError
from swift_rlx.trainers.rank_link import RankLink

WORD_AFTER_S = 1.0


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(rank: int, meeting_place: str) -> None:
    store = dist.FileStore(meeting_place, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    first = RankLink(torch.device("cpu"))
    say(first.share(lambda: b"one").decode())
    try:
        first.share(failing)
    except (OSError, RlxError) as error:
        say(error)
    second, begin_s = RankLink(torch.device("cpu")), time.monotonic()
    broadcast = second._broadcast

    def noting(message: bytes | None) -> bytes:
        say("collective after the word:", time.monotonic() - begin_s > WORD_AFTER_S / 2)
        return broadcast(message)

    second._broadcast = noting  # type: ignore[method-assign]
    say(second.share(slow).decode())
    sys.stdout.flush()
    os._exit(0)  # the interpreter's end is not what is tested here


def failing() -> bytes:
    raise OSError("disk full")


def slow() -> bytes:
    time.sleep(WORD_AFTER_S)
    return b"two"


if __name__ == "__main__":
    main(int(sys.argv[1]), str(Path(sys.argv[2])))
