"""Rewards: how they are named, described, called, run, and combined. Nothing here knows ms-swift.

- registration: REWARDS, register_reward, resolve_reward: names, from entry points and decorators
- spec: describe_reward gives a Reward with its RewardSpec: how it wants to be called (origin: how another process
  finds it; versions: what tells two of it apart)
- source: RewardSource, a reward that is an object with a name, a version and an async `score`
- checked: checked_reward gives a plain callable (batch, scoring_plan, outcome, values: its arguments and results)
- runner: RewardRunner scores beside the training (execution: where; rate, score_cache, transient: how often)
- alarm_watch: AlarmWatch, rewards that can only be called in the main thread
- on_error: OnError, what a failing row gets
- columns: missing_columns, reserved_columns, the data set against the rewards
- combination: RewardCombiner, several sources into one reward (normalize, ensemble, combine: its parts)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from swift_rlx.rewards.alarm_watch import AlarmRefused, AlarmWatch
from swift_rlx.rewards.checked import AsyncCheckedReward, CheckedReward, checked_reward
from swift_rlx.rewards.columns import ReservedColumns, missing_columns, reserved_columns
from swift_rlx.rewards.counters import RewardCounters
from swift_rlx.rewards.on_error import OnError
from swift_rlx.rewards.rate import RateLimits
from swift_rlx.rewards.registration import REWARDS, register_reward, resolve_reward
from swift_rlx.rewards.source import RewardRow, RewardSource
from swift_rlx.rewards.spec import Reward, RewardSpec, Scope, callable_name, describe_reward

if TYPE_CHECKING:
    from swift_rlx.rewards.combination import RewardCombiner as RewardCombiner
    from swift_rlx.rewards.combine import Combined as Combined
    from swift_rlx.rewards.combine import combine_rewards as combine_rewards

# Loaded on first use: they need torch, which a process that only scores may never load.
_LAZY = {"Combined": "combine", "RewardCombiner": "combination", "combine_rewards": "combine"}

__all__ = [
    "REWARDS",
    "AlarmRefused",
    "AlarmWatch",
    "AsyncCheckedReward",
    "CheckedReward",
    "Combined",
    "OnError",
    "RateLimits",
    "ReservedColumns",
    "Reward",
    "RewardCombiner",
    "RewardCounters",
    "RewardRow",
    "RewardSource",
    "RewardSpec",
    "Scope",
    "callable_name",
    "checked_reward",
    "combine_rewards",
    "describe_reward",
    "missing_columns",
    "register_reward",
    "reserved_columns",
    "resolve_reward",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
