"""How many groups may be admitted: the arithmetic that makes the staleness bound hold.

Laws, with B = batch_groups, m = batches_per_step, and b = max_staleness // steps_per_batch:

1. A group is charged when it is admitted. Its charge ends when it is dropped, or when weights that were trained on
   it are live on the workers (not when it is picked up): no slot is given away while the weights that would
   fill it are older than those of the trainer.
2. At most (b + 1) m B groups are charged. A step with pick-ups takes m B of them, and what was picked before the
   weights that are live is no longer among them; so a group that begins under live weights can be picked at one
   of the (b + 1) m pick-ups that the bound allows it. Weights that are published in the middle of a batch
   (steps_per_batch > 1) only make a group younger: the batch in training keeps its charge until its last step.
   Where some batches come from a store, only the pick-ups count that there are (`RolloutConfig.places_at`).
3. admitted - dropped never exceeds max_batches * B (after a restart: beside what was picked before it): nothing is
   generated that will not be trained.

Shaping. The bound is a limit, not an aim: answers that wait in the buffer only grow old. Between two pick-ups the
trainer needs B ready groups, and some answers need longer than one step; so besides the batch in training, B groups
plus as many as are usually unfinished at a pick-up (a running mean) plus a margin are enough. The
margin grows by m B/8 whenever the trainer had to wait and shrinks slowly otherwise. At max_staleness 0 nothing can grow
old, and nothing is shaped.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from swift_rlx.errors import SchedulingError
from swift_rlx.scheduler.config import RolloutConfig

MEAN_WEIGHT = 0.1
"""Weight of the newest step in the running mean of unfinished groups."""
MARGIN_DECAY = 0.98
"""What is left of the margin after a step without a wait."""


@dataclass(frozen=True, slots=True)
class CapacityCounts:
    """What `Capacity` has counted; survives a restart. `picks`: (step that makes it live, groups)."""

    admitted: int = 0
    dropped: int = 0
    picked: int = 0
    released: int = 0
    picks: tuple[tuple[int, int], ...] = ()
    unfinished: float | None = None
    margin: float | None = None


class Capacity:
    """Counts admissions and says how many more there may be. `step` is that of the weights that are live."""

    def __init__(self, config: RolloutConfig, step: int = 0, counts: CapacityCounts | None = None) -> None:
        counts = counts or CapacityCounts()
        self.admitted = counts.admitted
        self.dropped = counts.dropped
        self.picked = counts.picked
        self._config = config
        self._picked_before = counts.picked
        self._released = counts.released
        self._picks = deque(counts.picks)
        self._further: Counter[int] = Counter()
        self._step = step
        self._unfinished = config.batch_groups if counts.unfinished is None else counts.unfinished
        self._margin = (
            config.batches_per_step * config.batch_groups / 4 if counts.margin is None else counts.margin
        )
        self.live(step)

    def counts(self) -> CapacityCounts:
        """What a restart goes on with."""
        return CapacityCounts(
            self.admitted,
            self.dropped,
            self.picked,
            self._released,
            tuple(self._picks),
            self._unfinished,
            self._margin,
        )

    @property
    def charged(self) -> int:
        """Groups that hold a place."""
        return self.admitted - self.dropped - self._released

    @property
    def waiting(self) -> int:
        """Groups admitted and neither dropped nor picked up."""
        return self.admitted - self.dropped - self.picked

    @property
    def is_full(self) -> bool:
        """Whether only weights that go live, or a drop, can make room."""
        return self.charged >= self._places()

    def picks_left(self, step: int) -> int:
        """Pick-ups of this optimizer step that follow the next one."""
        made = sum(when == step + self._config.steps_per_batch for when, _ in self._picks)
        return max(self._config.picks_at(step) + self._further[step] - 1 - made, 0)

    def allow(self, step: int) -> None:
        """One more batch than was planned is picked up at this optimizer step: the store lacks what was due from it."""
        self._further[step] += 1

    def next_pick(self, step: int) -> tuple[int, int]:
        """The optimizer step of the next pick-up, the trainer being at `step`, and how many of that step follow it."""
        config = self._config
        if self._picks:
            past = self._picks[-1][0]
            made = sum(when == past for when, _ in self._picks)
            if made < config.batches_per_step:
                return past - config.steps_per_batch, config.batches_per_step - 1 - made
            step = max(step, past)
        return step, config.batches_per_step - 1

    @property
    def has_admitted_all(self) -> bool:
        """Whether what `max_batches` allows is admitted."""
        return self._config.max_batches is not None and self._left(self._config.max_batches) <= 0

    def room(self) -> int:
        """How many groups may be admitted now."""
        config = self._config
        room = self._places() - self.charged
        if config.max_batches is not None:
            room = min(room, self._left(config.max_batches))
        if config.shape_capacity and config.max_staleness:
            room = min(room, self._shaped() - self.waiting)
        return max(room, 0)

    def admit(self) -> int:
        """Charge one group and return its number. Raises `SchedulingError` without room."""
        if not self.room():
            raise SchedulingError(f"a group was admitted without room: {self.charged} are charged")
        self.admitted += 1
        return self.admitted - 1

    def drop(self) -> None:
        """A group ended without training; its place goes to another prompt."""
        self.dropped += 1

    def pick(self, groups: int, step: int, unfinished: int, waited: bool) -> None:
        """The trainer took `groups` at optimizer step `step`, with `unfinished` others not ready."""
        config = self._config
        self.picked += groups
        self._picks.append((step + config.steps_per_batch, groups))
        parts = config.batches_per_step
        self._unfinished += MEAN_WEIGHT / parts * (unfinished - self._unfinished)
        wider = min(self._margin + parts * config.batch_groups / 8, config.places)
        self._margin = wider if waited else self._margin * MARGIN_DECAY ** (1 / parts)

    def live(self, step: int) -> None:
        """Weights of this optimizer step are live: what they were trained on gives up its place."""
        if step < self._step:
            raise SchedulingError(f"optimizer step {step} went live after {self._step}")
        self._step = step
        while self._picks and self._picks[0][0] <= step:
            self._released += self._picks.popleft()[1]

    def _left(self, max_batches: int) -> int:
        groups = self._picked_before + (max_batches + self._further.total()) * self._config.batch_groups
        return groups - (self.admitted - self.dropped)

    def _places(self) -> int:
        config, first = self._config, self._step - self._config.steps_per_batch + 1
        further = sum(
            count
            for step, count in self._further.items()
            if first <= step <= self._step + config.max_staleness
        )
        return config.places_at(self._step) + further * config.batch_groups

    def _shaped(self) -> int:
        return round(self._config.batch_groups + self._unfinished + self._margin)
