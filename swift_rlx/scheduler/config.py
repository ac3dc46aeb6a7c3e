"""Settings of the rollout scheduler."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from swift_rlx.backends.base import WeightUpdate
from swift_rlx.errors import ConfigError
from swift_rlx.types import SamplingParams

MOST_STALENESS = 1000
"""Optimizer steps; each pick-up looks at every step within the bound."""


class TrainOrder(enum.Enum):
    """Which ready groups train next."""

    COMPLETION = "completion"
    """Those that would lose most tokens to the staleness bound by waiting; else in the order of completion."""
    ADMISSION = "admission"
    """Those admitted first: the same sequence whatever the latencies; the trainer waits for the slowest."""


class StaleTokens(enum.Enum):
    """What happens to tokens over the staleness bound."""

    MASK = "mask"
    """They leave the loss mask; the answer's younger tokens train."""
    DROP = "drop"
    """Their whole answer leaves the batch."""


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Counts are groups unless named otherwise; times are seconds."""

    batch_groups: int
    """Groups of a generation batch."""
    group_size: int = 8
    """Completions per prompt."""
    min_members: int = 2
    """Members with a reward that a group needs to train."""
    max_staleness: int = 2
    """Optimizer steps: strict bound for every trained token, when its batch is picked up."""
    steps_per_batch: int = 1
    """Optimizer steps that the trainer makes with a generation batch, rounded down where batches differ."""
    batches_per_step: int = 1
    """Generation batches that the trainer picks up for one optimizer step, rounded up where steps differ; above 1 only
    with `steps_per_batch` 1."""
    fresh_batches: Callable[[int], int] | None = None
    """How many generation batches the trainer picks up at an optimizer step (0, 1, ...), where others of its batches
    come from a store; None: `batches_per_step` at every `steps_per_batch`-th."""
    max_batches: int | None = None
    """Generation batches that will be picked up, after a restart those that are left; nothing is admitted past them."""
    max_inflight: int | None = None
    """Completions in flight per worker; None: adapted to the workers' speed and `target_latency_s` (`inflight.py`)."""
    target_latency_s: float = 2.0
    """How long an answer should take on average, where `max_inflight` is None and lengths allow it."""
    reserved_share: float = 0.0
    """Share of a worker's slots kept for prompts whose `expected_tokens` reach `long_tokens`."""
    long_tokens: int = 2048
    shape_capacity: bool = True
    """Hold fewer answers than the bound allows, as few as keep the trainer fed (`capacity.py`)."""
    weight_update: WeightUpdate | None = None
    """None: the first of keep, pin and drain that every worker can."""
    train_order: TrainOrder = TrainOrder.COMPLETION
    stale_tokens: StaleTokens = StaleTokens.MASK
    request_timeout_s: float = 300.0
    """Of the first attempt at a request; doubled with each further one, so that long answers are not cut again and
    again. So are the next two, which count for workers that tell of tokens as they make them (`time_limits.py`)."""
    first_token_limit_s: float = 45.0
    """How long a request may be without its first token, while its worker makes none for those before it."""
    token_gap_limit_s: float = 45.0
    """The same between two of its tokens."""
    retries: int = 3
    """Further attempts per request. The death of a worker uses up attempts of who is to blame alone (`blame.py`)."""
    abort_grace_s: float = 5.0
    """How long a backend may take to end a request that it was told to end."""
    outage_limit_s: float = 50.0
    """How long no worker may have been well before the run ends with the last error (`recovery.py`)."""
    publish_limit_s: float = 300.0
    """How long a worker may take to apply weights."""
    warm_up_limit_s: float = 600.0
    """How long the first batch may take."""
    score_concurrency: int = 64
    """Groups being scored at a time."""
    score_limit_s: float = 300.0
    """How long a group may take to be scored, from when those whose scoring began before are done."""
    seed: int = 0
    sampling: SamplingParams = field(default_factory=SamplingParams)
    samplings: tuple[SamplingParams, ...] = ()
    """Where the members of a group are sampled differently, in the place of `sampling`: member i takes number i, and
    begins again behind the last one."""

    def __post_init__(self) -> None:
        at_least = {
            "batch_groups": 1,
            "group_size": 1,
            "min_members": 1,
            "max_staleness": 0,
            "steps_per_batch": 1,
            "batches_per_step": 1,
            "retries": 0,
            "score_concurrency": 1,
        }
        for name, least in at_least.items():
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name} {value} is refused: it must be at least {least}")
        if self.max_staleness > MOST_STALENESS:
            raise ConfigError(
                f"max_staleness {self.max_staleness} is refused: it must be at most {MOST_STALENESS}"
            )
        if self.steps_per_batch > 1 and self.batches_per_step > 1:
            raise ConfigError(
                f"steps_per_batch {self.steps_per_batch} with batches_per_step {self.batches_per_step} is refused:"
                " at most one of them may exceed 1"
            )
        if self.min_members > self.group_size:
            raise ConfigError(
                f"min_members {self.min_members} is refused: it exceeds group_size {self.group_size};"
                " no group could train"
            )
        if not 0 <= self.reserved_share < 1:
            raise ConfigError(f"reserved_share {self.reserved_share:g} is refused: use 0 up to less than 1")
        for name, least in {"max_batches": 0, "max_inflight": 1}.items():
            if (limit := getattr(self, name)) is not None and limit < least:
                raise ConfigError(f"{name} {limit} is refused: use at least {least}, or None")
        for name in (
            "target_latency_s",
            "request_timeout_s",
            "first_token_limit_s",
            "token_gap_limit_s",
            "abort_grace_s",
            "outage_limit_s",
            "publish_limit_s",
            "warm_up_limit_s",
            "score_limit_s",
        ):
            if (seconds := getattr(self, name)) <= 0:
                raise ConfigError(f"{name} {seconds:g} is refused: it must be above 0")

    @property
    def places(self) -> int:
        """Groups that may be admitted whose weights are not live yet: those of the pick-ups within the bound."""
        return (self.max_staleness // self.steps_per_batch + 1) * self.batches_per_step * self.batch_groups

    def places_at(self, step: int) -> int:
        """The same while the weights of this step are live: of the pick-ups that there are, and of a batch that is in
        training."""
        if self.fresh_batches is None:
            return self.places
        steps = range(max(step - self.steps_per_batch + 1, 0), step + self.max_staleness + 1)
        return sum(map(self.fresh_batches, steps)) * self.batch_groups

    def picks_at(self, step: int) -> int:
        """Pick-ups of a step that has any."""
        return self.batches_per_step if self.fresh_batches is None else self.fresh_batches(step)

    def picks_after(self, step: int, level: int) -> int:
        """Pick-ups of the `level` steps that follow `step` and may have one."""
        if self.fresh_batches is None:
            return level * self.batches_per_step
        return sum(map(self.fresh_batches, range(step + 1, step + level * self.steps_per_batch + 1)))

    def sampling_of(self, member: int) -> SamplingParams:
        """How that member of a group is sampled, but for its seed."""
        return self.samplings[member % len(self.samplings)] if self.samplings else self.sampling

    def most_inflight(self, workers: int) -> int:
        """Completions that a worker can have in flight at most: its part of all places."""
        return -(-self.places * self.group_size // workers)

    def level(self, deadline: int, step: int) -> int:
        """How many steps with a pick-up come after `step`, up to `deadline`; negative past it."""
        return (deadline - step) // self.steps_per_batch
