"""The rollout scheduler: keeps generation, scoring and training busy under a strict staleness bound."""

from swift_rlx.scheduler.config import RolloutConfig, StaleTokens, TrainOrder
from swift_rlx.scheduler.prompts import IterableSource, PromptFeed, completion_seed, epoch_order
from swift_rlx.scheduler.scheduler import RolloutScheduler, Statistics

__all__ = [
    "IterableSource",
    "PromptFeed",
    "RolloutConfig",
    "RolloutScheduler",
    "StaleTokens",
    "Statistics",
    "TrainOrder",
    "completion_seed",
    "epoch_order",
]
