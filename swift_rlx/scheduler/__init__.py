"""The rollout scheduler: keeps generation, scoring and training busy under a strict staleness bound."""

from swift_rlx.scheduler.config import RolloutConfig, StaleTokens, TrainOrder
from swift_rlx.scheduler.ending import GroupEnd, GroupOutcome
from swift_rlx.scheduler.prompts import IterableSource, PromptFeed, completion_seed, epoch_order
from swift_rlx.scheduler.resume import OpenPrompt, RolloutState
from swift_rlx.scheduler.scheduler import RolloutScheduler
from swift_rlx.scheduler.scoring import GroupRejected
from swift_rlx.scheduler.state_file import load_state, save_state
from swift_rlx.scheduler.statistics import Statistics
from swift_rlx.scheduler.threaded import RolloutThread

__all__ = [
    "GroupEnd",
    "GroupOutcome",
    "GroupRejected",
    "IterableSource",
    "OpenPrompt",
    "PromptFeed",
    "RolloutConfig",
    "RolloutScheduler",
    "RolloutState",
    "RolloutThread",
    "StaleTokens",
    "Statistics",
    "TrainOrder",
    "completion_seed",
    "epoch_order",
    "load_state",
    "save_state",
]
