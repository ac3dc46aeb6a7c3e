"""The rollout scheduler: keeps generation, scoring and training busy under a strict staleness bound."""

from swift_rlx.scheduler.config import RolloutConfig, StaleTokens, TrainOrder
from swift_rlx.scheduler.ending import GroupEnd, GroupOutcome
from swift_rlx.scheduler.hybrid import BatchSource, HybridSchedule, HybridState, offline_ratio
from swift_rlx.scheduler.prompts import IterableSource, PromptFeed, completion_seed, epoch_order
from swift_rlx.scheduler.resume import OpenPrompt, RolloutState
from swift_rlx.scheduler.reuse import MAX_REUSE, ReuseLedger
from swift_rlx.scheduler.scheduler import RolloutScheduler
from swift_rlx.scheduler.scoring import GroupRejected
from swift_rlx.scheduler.state_file import load_state, save_state
from swift_rlx.scheduler.statistics import Statistics
from swift_rlx.scheduler.threaded import RolloutThread
from swift_rlx.scheduler.wait_filler import FillCounts, WaitFiller

__all__ = [
    "MAX_REUSE",
    "BatchSource",
    "FillCounts",
    "GroupEnd",
    "GroupOutcome",
    "GroupRejected",
    "HybridSchedule",
    "HybridState",
    "IterableSource",
    "OpenPrompt",
    "PromptFeed",
    "ReuseLedger",
    "RolloutConfig",
    "RolloutScheduler",
    "RolloutState",
    "RolloutThread",
    "StaleTokens",
    "Statistics",
    "TrainOrder",
    "WaitFiller",
    "completion_seed",
    "epoch_order",
    "load_state",
    "offline_ratio",
    "save_state",
]
