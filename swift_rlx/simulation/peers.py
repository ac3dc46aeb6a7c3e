"""The peers' admission and staleness rules, re-expressed in our words over the same arrivals.

A slot holds one group, which has one age: that of the weights when it began. Trained tokens are all of the group's.
These are models of rules, not of the programs that have them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from swift_rlx.simulation.outcome import Outcome, Tally
from swift_rlx.simulation.setting import Setting


@dataclass(frozen=True, slots=True)
class Rule:
    """How a peer decides. `ahead`: batches that may be admitted beside the one in training; None: no limit."""

    name: str
    ahead: Callable[[Setting], int | None]
    discards: bool = False
    """Groups over the bound are thrown away when the trainer would take them."""
    cancels: bool = False
    """Groups in flight that are over the bound are thrown away when weights are published."""
    waits: bool = False
    """The trainer waits for what would be over the bound after its step."""
    oldest_first: bool = False
    """The trainer takes the groups that began first, instead of those that ended first."""


def _bound(setting: Setting) -> int:
    return setting.max_staleness


PEERS = {
    rule.name: rule
    for rule in (
        Rule("sync", lambda setting: 0),
        Rule("totals (AReaL, SkyRL)", _bound),
        Rule("discard at dequeue (TRL)", lambda setting: None, discards=True),
        Rule("totals, discard (miles)", _bound, discards=True),
        Rule("cancel the old (prime-rl, ROLL)", _bound, discards=True, cancels=True, oldest_first=True),
        Rule("wait (verl)", _bound, waits=True, oldest_first=True),
        Rule("no bound", lambda setting: None),
    )
}


@dataclass(frozen=True, slots=True)
class _Group:
    index: int
    begin_s: float
    latency_s: float
    version: int


def simulate_peer(rule: Rule, setting: Setting) -> Outcome:
    """Train `setting.steps` steps under a peer's rule."""
    model, tally = _Model(rule, setting), Tally(setting)
    for _ in range(setting.steps):
        batch = model.wait_for_batch()
        for group in batch:
            age, tokens = model.version - group.version, model.tokens(group)
            tally.trained(group.index, {age: tokens}, 0)
        model.train()
        tally.step(model.now)
    for group, tokens in model.thrown_away:
        tally.lost(group.index, tokens)
    return tally.outcome()


class _Model:
    """Slots, a queue of finished groups in the order of completion, and a trainer."""

    def __init__(self, rule: Rule, setting: Setting) -> None:
        self.now = 0.0
        self.version = 0
        self.thrown_away: list[tuple[_Group, int]] = []
        self._rule = rule
        self._setting = setting
        self._ahead = rule.ahead(setting)
        self._running: list[tuple[float, int, _Group]] = []
        self._ready: list[_Group] = []
        self._next = 0
        self._charged = 0
        self._in_training = 0

    def tokens(self, group: _Group, seconds: float | None = None) -> int:
        """Tokens that the group has after `seconds`, by default at its end."""
        return int((group.latency_s if seconds is None else seconds) * self._setting.tokens_per_s)

    def wait_for_batch(self) -> list[_Group]:
        """Let time pass until the rule allows a batch, and take it."""
        self._fill()
        while not self._discard() or self._must_wait():
            self._finish_one()
        if self._rule.oldest_first:
            self._ready.sort(key=lambda group: group.version)
        size = self._setting.batch_groups
        batch, self._ready = self._ready[:size], self._ready[size:]
        self._in_training = size
        return batch

    def train(self) -> None:
        """A step, at whose end weights are published."""
        end = self.now + self._setting.train_s
        while self._running and self._running[0][0] <= end:
            self._finish_one()
        self.now = end
        self.version += 1
        self._charged -= self._in_training
        if self._rule.cancels:
            self._cancel()
        self._fill()

    def _fill(self) -> None:
        setting = self._setting
        limit = None if self._ahead is None else (self._ahead + 1) * setting.batch_groups
        while len(self._running) < setting.slots and (limit is None or self._charged < limit):
            group = _Group(self._next, self.now, setting.group_latency_s(self._next), self.version)
            heapq.heappush(self._running, (self.now + group.latency_s, group.index, group))
            self._next += 1
            self._charged += 1

    def _finish_one(self) -> None:
        self.now, _, group = heapq.heappop(self._running)
        self._ready.append(group)
        self._fill()

    def _is_over(self, group: _Group) -> bool:
        return self.version - group.version > self._setting.max_staleness

    def _discard(self) -> bool:
        """Throw away what is over the bound; whether a batch is left."""
        if self._rule.discards:
            over = [group for group in self._ready if self._is_over(group)]
            self._ready = [group for group in self._ready if not self._is_over(group)]
            self._throw_away([(group, self.tokens(group)) for group in over])
            self._fill()
        return len(self._ready) >= self._setting.batch_groups

    def _cancel(self) -> None:
        over = [entry for entry in self._running if self._is_over(entry[2])]
        self._running = [entry for entry in self._running if not self._is_over(entry[2])]
        heapq.heapify(self._running)
        self._throw_away([(group, self.tokens(group, self.now - group.begin_s)) for _, _, group in over])

    def _throw_away(self, groups: list[tuple[_Group, int]]) -> None:
        self.thrown_away += groups
        self._charged -= len(groups)

    def _must_wait(self) -> bool:
        bound = self._setting.max_staleness
        return self._rule.waits and any(
            group.version + bound < self.version + 1 for _, _, group in self._running
        )
