"""Lives whose crashes lose nothing that a journal kept: the log in memory, and a checker of what is replayed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from resumed_runs import Life
from scheduler_runs import Watch
from stored_groups import facts

from swift_rlx.scheduler import GroupOutcome
from swift_rlx.scheduler.journal_entries import Admitted, Dropped, PickedUp, Scored
from swift_rlx.scheduler.replay import advance


def _of(kind, entries):
    return [one for one in entries if isinstance(one, kind)]


@dataclass
class MemoryLog:
    """A journal as one sequence of entries, in which a name is a position."""

    entries: list = field(default_factory=list)

    def add(self, entry):
        self.entries.append(entry)

    def cut(self):
        return str(len(self.entries))

    def resume(self, state):
        """A snapshot with what came after it."""
        behind = self.entries[int(state.journal) :]
        return replace(advance(state, behind), journal=self.cut())


class _Flying(Counter):
    """Requests in flight by (prompt, member); tells of the prompt of each that is sent."""

    def __init__(self, sent):
        super().__init__()
        self._sent = sent

    def __setitem__(self, key, count):
        if count > self[key]:
            self._sent(key[0])
        super().__setitem__(key, count)


@dataclass
class JournalWatch(Watch):
    """Also knows what earlier starts left: `replayed` batches come first, `kept` groups are not generated."""

    earlier: dict = field(default_factory=dict)
    """What batches held, by step and prompts."""
    to_replay: list = field(default_factory=list)
    kept: set = field(default_factory=set)
    made_again: Counter = field(default_factory=Counter)
    repeated: list = field(default_factory=list)
    """What was generated although the journal had it."""
    refilled: int = 0
    """Stored batches that were trained again."""

    def __post_init__(self):
        self.flying = _Flying(self.sent)

    def on_end(self, end):
        super().on_end(end)
        if end.outcome is GroupOutcome.OVER_AGE:
            self.kept.discard(end.group.prompt.key)
            self.made_again[end.group.prompt.key] += 1
            assert self.made_again[end.group.prompt.key] == 1, "a group was over age twice"

    def sent(self, key):
        """A request for this prompt goes to a worker."""
        if key in self.kept:  # an error raised here would count as one of the worker
            self.repeated.append(key)

    def check_batch(self, batch):
        super().check_batch(batch)
        orders = tuple(one.group.order for one in batch.groups)
        held = [(facts(one.group), [mask.tobytes() for mask in one.loss_masks]) for one in batch.groups]
        if self.to_replay:
            step, expected = self.to_replay.pop(0)
            assert (batch.step, orders) == (step, expected), (
                "another batch than was picked up before the crash"
            )
            assert held == self.earlier[step, orders], "the same batch, but not as it was"
        self.earlier[batch.step, orders] = held

    def check_fill(self, scheduler, batch):
        super().check_fill(scheduler, batch)
        if self.to_replay:
            self.refilled += 1
            assert self.to_replay.pop(0) == (batch.step, ()), "a stored batch in the place of a fresh one"


@dataclass
class JournaledLife(Life):
    """A life with a journal, of which a crash may tear off the last entries."""

    log: MemoryLog = field(default_factory=MemoryLog)
    earlier: dict = field(default_factory=dict)
    repeated: list = field(default_factory=list)
    replayed: int = 0
    crashes_in_a_replay: int = 0
    torn: float = 0.0
    """Share of the crashes that take the last entries with them."""
    last_watch: JournalWatch | None = None
    watches: list = field(default_factory=list)

    def saves(self, chance):
        return self.checkpoint.state is None or chance.random() < 0.1

    def state(self):
        if self.last_watch is not None:
            self.crashes_in_a_replay += bool(self.last_watch.to_replay)
        if self.checkpoint.state is None:
            self.log.entries.clear()
            return None
        chance = random.Random(f"torn/{self.plan.seed}/{self.starts}")
        if chance.random() < self.torn:
            del self.log.entries[
                max(len(self.log.entries) - chance.randint(1, 9), int(self.checkpoint.state.journal)) :
            ]
        return self.log.resume(self.checkpoint.state)

    def begun(self, state, watch):
        """What has to happen follows from the snapshot and the entries behind it, not from what was made of them."""
        saved = self.checkpoint.state
        behind = self.log.entries[int(saved.journal) :]
        keys = {one.order: (one.epoch, one.index) for one in (*saved.open, *_of(Admitted, behind))}
        picks = [*saved.replay, *_of(PickedUp, behind)]
        watch.to_replay = [(one.step, one.orders) for one in picks]
        ended = {one.order for one in saved.open if one.ready is not None}
        ended |= {one.group.order for one in _of(Scored, behind)} | {
            one.order for one in _of(Dropped, behind)
        }
        watch.kept = {keys[order] for order in ended}
        self.replayed += len(picks)

    def watch(self):
        watch = self.last_watch = JournalWatch(self.plan, earlier=self.earlier, repeated=self.repeated)
        self.watches.append(watch)
        return watch

    def options(self, watch):
        return {"journal": self.log, "on_end": watch.on_end}
