"""The durable log of a run between its checkpoints, written by a thread of its own.

The thread hands an entry to the operating system at once: from then on it survives the death of the process. After that
it rests for as long as keeps its share of the time under 1 %, at most `REST_S`; entries that come meanwhile are written
together. A batch that is picked up ends the rest: what is trained on is written before. Once a second the thread syncs
the file: then entries survive the loss of power.

A disk that refuses, because it is full, is asked again for half a minute; meanwhile the run goes on, and entries wait
in memory. After that, or when the disk has not answered for `STALL_S`, the next call raises a `StoreError`, which ends
the run.

Nothing is kept before the first snapshot: no checkpoint could use it.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from swift_rlx.errors import StoreError
from swift_rlx.scheduler.journal_entries import Entry, PickedUp
from swift_rlx.scheduler.journal_segments import Position, Segment, new_name, read_past
from swift_rlx.scheduler.replay import advance
from swift_rlx.scheduler.resume import RolloutState
from swift_rlx.scheduler.segment_log import SYNC_S, SegmentLog
from swift_rlx.types import PolicyVersion

STALL_S = 45.0
REST_S = 0.5
REST_PER_WORK = 300.0
"""So many times as long as it has worked the thread rests. With cold caches, being woken is most of its work."""
CLOSE_S = 10.0

logger = logging.getLogger(__name__)

Item = Entry | Callable[[], None] | None
"""What the thread does next: write an entry, or something else; None: end."""


def go_on(state: RolloutState, directory: Path) -> tuple[RolloutState, Segment, int]:
    """A snapshot with what the journal in `directory` has behind it.

    Also the segment in which the next start of the run goes on, and how many bytes at the journal's end were torn.
    Raises `StoreError` for files that cannot be read, `CheckpointError` for entries that do not follow the snapshot.
    """
    past = read_past(directory, state.journal)
    version = PolicyVersion(max(state.incarnation, past.incarnation), state.version.step)
    segment = Segment(directory, new_name(), past.end, version.incarnation + 1)
    advanced = replace(advance(state, past.entries), version=version, journal=segment.name)
    return advanced, segment, past.cut_bytes


@dataclass(frozen=True, slots=True)
class JournalCost:
    """What a journal has written, and what that took from the rest of the process."""

    entries: int
    num_bytes: int
    seconds: float
    """Within calls, and processor time of the thread; where it waits for the disk it takes nothing from others."""
    share: float
    """`seconds` per second since the journal was made."""


class Journal:
    """An `EntrySink` that keeps its segments in `directory`, which is made with the first of them.

    `incarnation`: of this start of the run. `first`: the segment in which a resumed run goes on; without it nothing is
    kept until the first `cut`. All methods may be called from any thread.
    """

    def __init__(self, directory: Path, incarnation: int = 0, first: Segment | None = None) -> None:
        self._directory = directory
        self._incarnation = incarnation
        self._segment: Segment | None = None
        self._entries_in_segment = 0
        self._log = SegmentLog()
        # What waits is bounded by the groups that are open.
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._is_closing = self._has_ended = False
        self._flushing: set[threading.Event] = set()
        self._failure: StoreError | None = None
        self._busy_since: float | None = None
        self._begin_s, self._calls_s, self._thread_s = time.monotonic(), 0.0, 0.0
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        if first is not None:
            self._begin(first)
        self._thread.start()

    def add(self, entry: Entry) -> None:
        """Keep an entry. Raises `StoreError` where those before it could not be written."""
        begin_s = time.perf_counter()
        self._raise_failure()
        if self._segment is not None:
            self._entries_in_segment += 1
            self._items.put(entry)
            if isinstance(entry, PickedUp):
                self._hurry.set()
        self._calls_s += time.perf_counter() - begin_s

    def cut(self) -> str:
        """The name of a segment in `directory` that has no entries yet. Raises `StoreError` as `add` does."""
        self._raise_failure()
        before = self._segment
        if before is not None and before.directory == self._directory and not self._entries_in_segment:
            return before.name
        follows = Position() if before is None else Position(before.name, self._entries_in_segment)
        segment = Segment(self._directory, new_name(), follows, self._incarnation)
        self._begin(segment)
        return segment.name

    def release(self, needed: Collection[str]) -> None:
        """Have those segments in `directory` deleted that neither are in `needed` nor follow one that is."""
        if self._segment is not None:
            kept = {*needed, self._segment.name}
            self._items.put(partial(self._log.release, self._directory, kept))

    def flush(self, limit_s: float = CLOSE_S) -> bool:
        """Wait until what was added is written; whether that took less than the limit. Raises as `add` does.

        A journal that is closed has written it.
        """
        done = threading.Event()
        self._flushing.add(done)  # before the look at the end: a thread that ends later sets it
        self._raise_failure()
        if self._has_ended:
            done.set()
        self._items.put(done.set)
        self._hurry.set()
        is_done = done.wait(limit_s)
        self._flushing.discard(done)
        self._raise_failure()
        return is_done

    def cost(self) -> JournalCost:
        """The cost so far."""
        seconds = self._calls_s + self._thread_s
        share = seconds / max(time.monotonic() - self._begin_s, 1e-9)
        return JournalCost(self._log.entries, self._log.num_bytes, seconds, share)

    def close(self) -> None:
        """Write what waits and end the thread; a second call does nothing. Raises nothing: the run is over."""
        self._is_closing = True
        self._items.put(None)
        self._hurry.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            logger.warning("the journal in '%s' was not written within %g s", self._directory, CLOSE_S)

    def _begin(self, segment: Segment) -> None:
        self._segment, self._entries_in_segment = segment, 0
        self._items.put(partial(self._log.begin, segment))

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        since = self._busy_since
        if since is not None and time.monotonic() - since > STALL_S:
            raise StoreError(
                f"the journal in '{self._directory}' has not been written for {STALL_S:g} s: its disk does not answer;"
                " repair that, then resume from the newest checkpoint"
            )

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: StoreError | None = StoreError(
            f"the thread that writes the journal in '{self._directory}' died of the error that was printed above"
        )
        try:
            while True:
                items = self._next_items()
                self._work(items)
                self._log.sync_when_due()
                if None in items[-1:]:
                    break
                self._rest()
            self._log.close()
            failure = None
        except StoreError as error:
            failure = error
            logger.error("the run ends at the next entry: %s", error)
        finally:
            if failure is not None:
                self._log.abandon()
            self._failure, self._busy_since, self._has_ended = failure, None, True
            for each in list(self._flushing):
                each.set()

    def _next_items(self) -> list[Item]:
        """What waits, up to the end; nothing when it is time to sync."""
        self._busy_since = None
        items: list[Item] = []
        try:
            items.append(self._items.get(timeout=SYNC_S))
            while items[-1] is not None:
                items.append(self._items.get_nowait())
        except queue.Empty:
            pass
        self._busy_since = time.monotonic()
        return items

    def _rest(self) -> None:
        """Count what was worked, and let others work; entries gather meanwhile."""
        before, self._thread_s = self._thread_s, time.thread_time()
        self._busy_since = None
        self._hurry.wait(min(REST_PER_WORK * (self._thread_s - before), REST_S))
        if not self._is_closing:
            self._hurry.clear()

    def _work(self, items: Sequence[Item]) -> None:
        for is_command, run in itertools.groupby(items, callable):
            self._busy_since = time.monotonic()
            if is_command:
                for command in run:
                    cast("Callable[[], None]", command)()
            elif entries := [one for one in run if one is not None]:
                self._log.write(cast("list[Entry]", entries))
