"""How candidates are sampled, and under which name the store has them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass

from swift_rlx.backends.sampling_rules import sampling_fault
from swift_rlx.errors import ConfigError
from swift_rlx.scheduler import RolloutConfig
from swift_rlx.types import SamplingParams

BATCH_GROUPS = 8
MOST_BATCHES = 2000
"""Groups are taken from the scheduler in batches of at least `BATCH_GROUPS`, and in about so many of them at most."""


@dataclass(frozen=True, slots=True)
class CandidateSettings:
    """`count` candidates a prompt; candidate i takes number i of `samplings`, and begins again behind the last one.

    `engine`: what generates, with the digest of the model. Raises `ConfigError` for numbers that make no distribution.
    """

    count: int
    samplings: tuple[SamplingParams, ...]
    seed: int
    engine: str

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"{self.count} candidates a prompt are refused: use at least 1")
        if not self.samplings:
            raise ConfigError("candidates without a sampling are refused: name at least one temperature")
        if (fault := next(filter(None, map(sampling_fault, self.samplings)), None)) is not None:
            raise ConfigError(fault)

    def sampling_of(self, member: int) -> SamplingParams:
        """Of a candidate, but for its seed."""
        return self.samplings[member % len(self.samplings)]

    @property
    def writer(self) -> str:
        """The store's name of what writes these candidates: the same for the same settings, and for no others."""
        found = hashlib.blake2b(digest_size=8)
        for part in (self.count, [asdict(one) for one in self.samplings], self.seed, self.engine):
            found.update(repr(part).encode() + b"\0")
        return f"generate-{found.hexdigest()}"

    def rollout_config(self, num_prompts: int, max_inflight: int, timeout_s: float) -> RolloutConfig:
        """The scheduler's: weights never change, so all batches are of one optimizer step, and none is ever over age.

        A group is whole or is dropped. `max_inflight`: answers of a worker; nobody waits for a single one, so there are
        as many as that whenever there are enough.
        """
        batch = max(BATCH_GROUPS, num_prompts // MOST_BATCHES)
        return RolloutConfig(
            batch_groups=batch,
            batches_per_step=-(-num_prompts // batch),
            max_staleness=0,
            group_size=self.count,
            min_members=self.count,
            samplings=self.samplings,
            seed=self.seed,
            max_inflight=max_inflight,
            request_timeout_s=timeout_s,
            warm_up_limit_s=math.inf,
        )
