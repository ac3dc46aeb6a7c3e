"""What is simulated: one trainer, some workers, and how long things take."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from swift_rlx.backends.base import WeightUpdate
from swift_rlx.errors import ConfigError
from swift_rlx.scheduler import RolloutConfig, TrainOrder
from swift_rlx.testing.fake_backend import LogNormalLatency

TAIL = 0.05
"""The slowest prompts, whose fate is reported apart."""
WARM_UP_STEPS = 2
"""Steps that rates leave out."""

MOST = 1e6
"""Of a time in seconds, and of tokens a second."""
MOST_ANSWERS = 200_000
"""Of a run with few workers; some thousand are simulated in a second."""
MOST_MEAN_S = 1e4
"""Of an answer's latency; it has `tokens_per_s` tokens a second."""
MOST_WORKERS = 1000
WORKERS_OF_AN_ANSWER = 128
"""To look at so many for each answer takes as long as all the rest of it."""
MOST_SIGMA = 4.0
"""Of a log-normal latency: the slowest of a thousand answers takes 200,000 times the median."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Times are seconds. An answer's latency is log-normal and does not depend on what else runs."""

    train_s: float = 1.0
    generate_s: float = 1.6
    """Median latency of one answer."""
    sigma: float = 0.5
    workers: int = 1
    slots: int = 96
    """Answers in flight, all workers together."""
    batch_groups: int = 32
    group_size: int = 1
    batches_per_step: int = 1
    """Pick-ups of one step, each of its part of `batch_groups`, evenly spread over `train_s`."""
    max_staleness: int = 2
    steps: int = 300
    tokens_per_s: float = 10.0
    publish_s: float = 0.0
    score_s: float = 0.0
    weight_update: WeightUpdate = WeightUpdate.KEEP
    train_order: TrainOrder = TrainOrder.COMPLETION
    shape_capacity: bool = True
    fill_the_wait: bool = False
    """Keep what was trained in a store, and add stored groups to a step while no fresh batch is ready
    (`wait_filler.py`)."""
    reserved_share: float = 0.0
    """Share of the slots kept for prompts known to be among the slowest; above 0, every length is known before."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("train_s", "generate_s", "tokens_per_s"):
            if not 0 < (value := getattr(self, name)) <= MOST:
                raise ConfigError(f"{name} {value:g} is refused: it must be above 0 and at most {MOST:g}")
        for name, most in (("sigma", MOST_SIGMA), ("publish_s", MOST), ("score_s", MOST)):
            if not 0 <= (value := getattr(self, name)) <= most:
                raise ConfigError(f"{name} {value:g} is refused: it must be from 0 to {most:g}")
        if not 1 <= self.workers <= MOST_WORKERS:
            limit = "at least 1" if self.workers < 1 else f"at most {MOST_WORKERS}"
            raise ConfigError(f"workers {self.workers} is refused: it must be {limit}")
        if self.slots < self.workers:
            raise ConfigError(
                f"slots {self.slots} on {self.workers} workers is refused: each worker needs at least one slot"
            )
        if self.batches_per_step < 1 or self.batch_groups % self.batches_per_step:
            raise ConfigError(
                f"batches_per_step {self.batches_per_step} is refused: it has to divide the {self.batch_groups} groups"
                " of a step"
            )
        if self.steps <= WARM_UP_STEPS:
            raise ConfigError(
                f"steps {self.steps} is refused: it must exceed the {WARM_UP_STEPS} of the warm-up"
            )
        self.rollout_config()
        self._refuse_long_answers()
        self._refuse_many_answers()

    def _refuse_many_answers(self) -> None:
        """Raise ConfigError for a run that would take longer to simulate than anybody waits."""
        per_step = self.batch_groups * self.group_size
        answers = MOST_ANSWERS * WORKERS_OF_AN_ANSWER // (WORKERS_OF_AN_ANSWER + self.workers)
        most = answers // per_step - self.max_staleness
        if self.steps > most:
            name = "steps" if most > WARM_UP_STEPS else "group_size"
            instead = f"use at most {most}" if name == "steps" else "lower it, or --batch-groups"
            raise ConfigError(
                f"{name} {getattr(self, name)} is refused: with {self.workers} worker(s) at most {answers:,} answers"
                f" are simulated, {self.batch_groups} x {self.group_size} of them a step, up to"
                f" {self.max_staleness} steps ahead; {instead}"
            )

    def _refuse_long_answers(self) -> None:
        """Raise ConfigError for answers whose tokens would fill the memory."""
        mean_s = self.generate_s * math.exp(self.sigma**2 / 2)
        if mean_s > MOST_MEAN_S:
            raise ConfigError(
                f"generate_s {self.generate_s:g} is refused: with --sigma {self.sigma:g} an answer takes {mean_s:g} s"
                f" on average, and at most {MOST_MEAN_S:g} is simulated; use at most"
                f" {self.generate_s * MOST_MEAN_S / mean_s:.3g}"
            )

    @property
    def fill_groups(self) -> int:
        """Groups of a stored batch that fills a wait: an eighth of a fresh one, at least one group."""
        return max(self.batch_groups // self.batches_per_step // 8, 1)

    @property
    def latency(self) -> LogNormalLatency:
        """Latency by prompt and member."""
        return LogNormalLatency(self.generate_s, self.sigma, self.seed)

    def group_latency_s(self, index: int) -> float:
        """The slowest member of a prompt's group."""
        return max(self.latency.of(0, index, member) for member in range(self.group_size))

    def tail_latency_s(self) -> float:
        """Latency that a share `TAIL` of the prompts reaches."""
        return _tail_latency_s(self)

    def rollout_config(self) -> RolloutConfig:
        """The scheduler's settings for this run, never ended by a time limit."""
        return RolloutConfig(
            batch_groups=self.batch_groups // self.batches_per_step,
            batches_per_step=self.batches_per_step,
            group_size=self.group_size,
            min_members=min(2, self.group_size),
            max_staleness=self.max_staleness,
            max_inflight=self.slots // self.workers,
            shape_capacity=self.shape_capacity,
            reserved_share=self.reserved_share,
            long_tokens=int(self.tail_latency_s() * self.tokens_per_s) if self.reserved_share else 1,
            weight_update=self.weight_update,
            train_order=self.train_order,
            request_timeout_s=1e9,
            warm_up_limit_s=1e9,
            publish_limit_s=1e9,
            score_limit_s=1e9,
            seed=self.seed,
        )


@functools.lru_cache(maxsize=64)
def _tail_latency_s(setting: Setting) -> float:
    seen = sorted(setting.group_latency_s(index) for index in range(setting.steps * setting.batch_groups))
    return seen[int(len(seen) * (1 - TAIL))]
