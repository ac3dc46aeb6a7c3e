"""Rewards: how they are named, described, called, and combined. Nothing here knows ms-swift.

- registration: REWARDS, register_reward, resolve_reward: names, from entry points and decorators
- spec: describe_reward gives a Reward with its RewardSpec: how it wants to be called
- checked: checked_reward gives the CheckedReward that the trainer calls (batch, values: its arguments and
  results)
- alarm_watch: AlarmWatch, rewards that can only be called in the main thread
- on_error: OnError, what a failing row gets
- columns: missing_columns, reserved_columns, the data set against the rewards
- combine: combine_rewards, several sources into one reward
"""

from swift_rlx.rewards.alarm_watch import AlarmRefused, AlarmWatch
from swift_rlx.rewards.checked import AsyncCheckedReward, CheckedReward, RewardCounters, checked_reward
from swift_rlx.rewards.columns import ReservedColumns, missing_columns, reserved_columns
from swift_rlx.rewards.combine import Combined, combine_rewards
from swift_rlx.rewards.on_error import OnError
from swift_rlx.rewards.registration import REWARDS, register_reward, resolve_reward
from swift_rlx.rewards.spec import Reward, RewardSpec, Scope, callable_name, describe_reward

__all__ = [
    "REWARDS",
    "AlarmRefused",
    "AlarmWatch",
    "AsyncCheckedReward",
    "CheckedReward",
    "Combined",
    "OnError",
    "ReservedColumns",
    "Reward",
    "RewardCounters",
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
