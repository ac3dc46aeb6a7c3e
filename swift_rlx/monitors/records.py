"""What the monitors are told, and what they know about a whole run."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from swift_rlx.types import DropReason, Fate


class Phase(enum.Enum):
    """What the trainer's main thread does."""

    WAIT = "wait for rollouts"
    TRAIN = "train"
    """Forward, backward and optimizer: what counts as busy."""
    PUBLISH = "publish weights"
    """Gathering and handing over; loading on the workers is their own time."""
    EVALUATE = "evaluate"
    SAVE = "save checkpoint"


class Counters(Protocol):
    """The scheduler's counters since the start of the run (`swift_rlx.scheduler.Statistics`)."""

    @property
    def inflight(self) -> int:
        """Requests that workers work on."""

    @property
    def ready(self) -> int:
        """Scored groups that wait for the trainer."""

    @property
    def retries(self) -> int:
        """Requests sent again."""

    @property
    def repeated_tokens(self) -> int:
        """Tokens that were made a second time after a failure."""

    @property
    def failovers(self) -> int:
        """Ejections of workers."""

    @property
    def dropped(self) -> Mapping[DropReason, int]:
        """Groups that ended without training, by reason."""

    @property
    def max_inflight(self) -> Mapping[str, int]:
        """Requests that each worker may have in flight now."""

    @property
    def tokens(self) -> Mapping[Fate, int]:
        """Generated tokens by fate."""

    @property
    def away_s(self) -> float:
        """Seconds in which every worker was out at once, in this start of the run."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """How the run was set up, as far as advice depends on it."""

    workers: int = 1
    max_inflight: int | None = None
    """Per worker; None: adapted to a target latency."""
    max_staleness: int = 2
    weight_update: str = "keep"
    """The mode in use."""


@dataclass(frozen=True, slots=True)
class RunTotals:
    """A run from the end of its second step to the end of its last one, except for the counters: seconds and means."""

    steps: int = 0
    """All of them, the first two included."""
    wall_s: float = 0.0
    seconds: Mapping[Phase, float] = field(default_factory=dict)
    mean_inflight: float = 0.0
    """Answers in flight at a time, of those that ended."""
    slots: float = 0.0
    """Answers that the workers may have in flight together, mean over the lines of the log."""
    generate_s: float = 0.0
    """From the first submit of a trained group to its last answer, mean."""
    score_s: float = 0.0
    """From the last answer of a trained group to its scores, mean."""
    tokens: Mapping[Fate, int] = field(default_factory=dict)
    failovers: int = 0
    away_s: float = 0.0
    """In which every worker was out at once."""
    workers: tuple[str, ...] = ()
    """Their names."""

    def share(self, phase: Phase) -> float:
        """Of the wall time."""
        return self.seconds.get(phase, 0.0) / self.wall_s if self.wall_s > 0 else 0.0
