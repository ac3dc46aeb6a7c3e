"""How rank 0, which drives the pipeline, hands a message or its failure to the other ranks.

The ranks wait for the word of rank 0 at torch's key-value store, not inside a collective: the watchdogs of
collectives would end a run that waits for a long answer, and a collective cannot carry a failure. Only when the
message is there do they enter a broadcast.
"""

import itertools
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from swift_rlx.errors import RlxError

POLL_S = 5.0
OK, FAILED = b"ok", b"failed:"
_links = itertools.count()


class RankLink:
    """A numbered sequence of messages from rank 0 to all ranks. Every rank calls `share` equally often.

    The ranks make their links in the same order: what an earlier one left in the store is not for the next.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._number = 0
        name = f"swift_rlx/{next(_links)}"
        self._store = dist.PrefixStore(name, _default_store()) if _is_distributed() else None

    def share(self, make: Callable[[], bytes]) -> bytes:
        """What `make` returned on rank 0; it is not called on the others.

        Raises on every rank what `make` raised: there as itself, elsewhere as an RlxError with the same words.
        """
        self._number += 1
        if self._store is None:
            return make()
        if dist.get_rank() != 0:
            self._wait_for_word()
            return self._broadcast(None)
        try:
            message = make()
        except BaseException as error:
            self._tell_failure(self._number, error)
            raise
        self._store.set(_key(self._number), OK)
        return self._broadcast(message)

    def fail(self, error: BaseException) -> None:
        """Rank 0 cannot go on: the others raise this at their next `share`."""
        if self._store is not None and dist.get_rank() == 0:
            with suppress(
                dist.DistError
            ):  # without the store they end with it; the first error is what counts
                self._tell_failure(self._number + 1, error)

    def _tell_failure(self, number: int, error: BaseException) -> None:
        self._store.set(_key(number), FAILED + f"{type(error).__name__}: {error}".encode())

    def _wait_for_word(self) -> None:
        key = _key(self._number)
        while True:
            try:
                self._store.wait([key], timedelta(seconds=POLL_S))
            except dist.DistStoreError:
                continue  # not yet; the launcher ends this rank if another one dies
            word = self._store.get(key)
            if word.startswith(FAILED):
                raise RlxError(f"rank 0 failed: {word[len(FAILED) :].decode()}")
            return

    def _broadcast(self, message: bytes | None) -> bytes:
        size = torch.tensor([0 if message is None else len(message)], dtype=torch.int64, device=self._device)
        dist.broadcast(size, src=0)
        if message is None:
            body = torch.empty(int(size), dtype=torch.uint8, device=self._device)
        else:
            body = torch.frombuffer(bytearray(message), dtype=torch.uint8).to(self._device)
        dist.broadcast(body, src=0)
        return body.cpu().numpy().tobytes()


def _key(number: int) -> str:
    return f"message/{number}"


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _default_store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()
