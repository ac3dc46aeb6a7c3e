"""Writes a journal's segments one after the other, patiently: a disk that refuses is asked again for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from swift_rlx.errors import StoreError
from swift_rlx.scheduler.journal_entries import Entry, encode
from swift_rlx.scheduler.journal_segments import Segment, remove_unneeded
from swift_rlx.store import ShardWriter

RETRY_S = 30.0
RETRY_EVERY_S = 1.0
SYNC_S = 1.0
MAX_UNIT_ENTRIES = 256

Result = TypeVar("Result")
logger = logging.getLogger(__name__)


class SegmentLog:
    """Entries go to the segment that was begun last; its file is made with the first of them.

    `entries` and `num_bytes`: written so far. Raises `StoreError` for what the disk refused for `RETRY_S`; nothing can
    be written after that. One thread at a time.
    """

    def __init__(self) -> None:
        self.entries = 0
        self.num_bytes = 0
        self._segment: Segment | None = None
        self._writer: ShardWriter | None = None
        self._is_synced = True
        self._sync_at_s = 0.0

    def begin(self, segment: Segment) -> None:
        """End the segment of now, so that all of it survives a loss of power, and go on in this one."""
        self.close()
        self._segment = segment

    def write(self, entries: Sequence[Entry]) -> None:
        """Hand entries to the operating system, in units of at most `MAX_UNIT_ENTRIES`."""
        if self._writer is None:
            self._writer = self._insist(self._open)
        for begin in range(0, len(entries), MAX_UNIT_ENTRIES):
            before = self._writer.num_bytes
            unit = entries[begin : begin + MAX_UNIT_ENTRIES]
            self._writer.add(*encode(unit))
            self._insist(self._writer.flush)
            self._is_synced = False
            self.entries += len(unit)
            self.num_bytes += self._writer.num_bytes - before

    def sync_when_due(self) -> None:
        """Sync what is not, at most every `SYNC_S`."""
        if self._writer is not None and not self._is_synced and time.monotonic() >= self._sync_at_s:
            self._insist(self._writer.sync)
            self._is_synced = True
            self._sync_at_s = time.monotonic() + SYNC_S

    def release(self, directory: Path, needed: Collection[str]) -> None:
        """Delete the segments that neither are in `needed` nor follow one that is, as far as the disk allows it."""
        try:
            remove_unneeded(directory, needed)
        except StoreError as error:
            logger.warning("old segments of the journal stay: %s", error)

    def close(self) -> None:
        """End the segment of now."""
        if self._writer is not None:
            self._insist(self._writer.end)
            self.abandon()

    def abandon(self) -> None:
        """Let go of the file as it is."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None

    def _open(self) -> ShardWriter:
        assert self._segment is not None, "entries come after the begin of a segment"
        return self._segment.open()

    def _insist(self, action: Callable[[], Result]) -> Result:
        end_s = time.monotonic() + RETRY_S
        is_told = False
        while True:
            try:
                return action()
            except StoreError as error:
                if time.monotonic() >= end_s:
                    raise
                if not is_told:
                    logger.warning("%s; the journal tries it again for %g s", error, RETRY_S)
                    is_told = True
            time.sleep(RETRY_EVERY_S)
