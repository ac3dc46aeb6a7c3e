"""The arguments that we add to `swift rlhf`, shared by the command line and the training configuration."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from swift_rlx.errors import ConfigError
from swift_rlx.integration.algorithm_table import Algorithm
from swift_rlx.integration.off_policy_fields import OffPolicyFields, resolve_off_policy
from swift_rlx.integration.offline_fields import OfflineFields
from swift_rlx.integration.reward_fields import RewardFields, resolve_rewards
from swift_rlx.integration.rollout_fields import RolloutFields, resolve_rollout
from swift_rlx.integration.share_prompt_field import SharePromptField, refuse_share_prompt
from swift_rlx.integration.store_fields import StoreFields, resolve_store

Baseline = Literal["auto", "loo", "mean", "ema", "none"]


@dataclass
class RLXFields(RolloutFields, OffPolicyFields, RewardFields, SharePromptField, StoreFields, OfflineFields):
    """New fields; HfArgumentParser turns each into a flag, a YAML key and a keyword of RLHFArguments.

    The annotations are evaluated in ms-swift's module, hence `Optional` instead of the `|` of newer Pythons.
    """

    group_baseline: Baseline = field(
        default="auto",
        metadata={
            "help": "[swift-rlx] What is subtracted from the reward. auto: leave-one-out for rloo, global normalisation"
            " only for reinforce_pp, the group mean for reinforce_pp_baseline. ema (reinforce_pp): A = G - V with a"
            " running mean V of the rewards, instead of global normalisation."
        },
    )
    ema_baseline_decay: float = field(
        default=0.95,
        metadata={
            "help": "[swift-rlx] Decay of V for --group_baseline ema: V <- decay V + (1 - decay) mean reward."
        },
    )
    reward_clip: float | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Clip the combined reward to +-this before KL and baseline. Default: none for rloo, 10"
            " for reinforce_pp and reinforce_pp_baseline; inf switches it off."
        },
    )
    reward_on_error: str = field(
        default="raise",
        metadata={
            "help": "[swift-rlx] A reward that raises or returns NaN or inf for a row: raise (stop the run), none (the"
            " row is unscored and does not train), or value:X (the reward is X)."
        },
    )


FIELD_NAMES = tuple(f.name for f in fields(RLXFields))
FIELD_DEFAULTS = {f.name: f.default for f in fields(RLXFields)}


def adopt(values: Any, algorithm: Algorithm) -> None:
    """Turn arguments or a training configuration, as the user gave them, into those of `algorithm`, in place.

    What the user left open becomes the algorithm's default, and the ms-swift arguments that it fixes are set.
    Raises ConfigError as `resolve_fields` does.
    """
    from swift_rlx.rewards import OnError

    resolve_fields(values, algorithm)
    resolve_rollout(values, FIELD_DEFAULTS)
    resolve_store(values, algorithm.name)
    resolve_off_policy(values, algorithm.name)
    OnError.parse(values.reward_on_error)
    resolve_rewards(values)
    refuse_share_prompt(values)
    if values.beta is None:
        values.beta = algorithm.beta
    if values.kl_in_reward is None:
        values.kl_in_reward = algorithm.kl_in_reward
    for name, fixed in algorithm.stock.items():
        setattr(values, name, fixed)
    values.rlx_type = algorithm.name


def resolve_fields(values: RLXFields, algorithm: Algorithm) -> None:
    """Check our fields against the algorithm and replace their `auto` by what it stands for, in place.

    Raises ConfigError with one sentence that names the flag, the value and what is allowed.
    """
    if values.group_baseline == "auto":
        values.group_baseline = algorithm.baseline  # type: ignore[assignment]
    if values.group_baseline not in algorithm.baselines:
        raise ConfigError(
            f"--group_baseline {values.group_baseline} does not belong to --rlhf_type {algorithm.name}, which takes"
            f" {' or '.join(algorithm.baselines)}; leave it at auto" + _other_type(values.group_baseline)
        )
    if not 0.0 <= values.ema_baseline_decay < 1.0:
        raise ConfigError(
            f"--ema_baseline_decay {values.ema_baseline_decay} is refused: it must be at least 0 and below 1"
        )
    if values.ema_baseline_decay != FIELD_DEFAULTS["ema_baseline_decay"] and values.group_baseline != "ema":
        raise ConfigError(
            f"--ema_baseline_decay {values.ema_baseline_decay} has no effect without --group_baseline ema"
            " (rlhf_type reinforce_pp); drop it or set that baseline"
        )
    values.reward_clip = _resolve_clip(values.reward_clip, algorithm)


def _resolve_clip(clip: float | None, algorithm: Algorithm) -> float | None:
    """The bound in force; None means that nothing is clipped."""
    if clip is None:
        return algorithm.reward_clip
    if math.isnan(clip) or clip <= 0:
        raise ConfigError(f"--reward_clip {clip} is refused: it must be positive; inf switches it off")
    return None if math.isinf(clip) else clip


def _other_type(baseline: str) -> str:
    homes = {
        "mean": "; the group mean is --rlhf_type reinforce_pp_baseline",
        "ema": "; the running mean is --rlhf_type reinforce_pp",
        "none": "; no group baseline is --rlhf_type reinforce_pp",
        "loo": "; leave-one-out is --rlhf_type rloo",
    }
    return homes[baseline]
