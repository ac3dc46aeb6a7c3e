"""The arguments of the rewards: where they run, how they are combined, and what a change of them does."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from swift_rlx.errors import ConfigError
from swift_rlx.integration.rollout_fields import device_ids

# No `from __future__ import annotations` here: ms-swift's parser evaluates the annotations in another module.


@dataclass
class RewardFields:
    """New fields of `swift rlhf`; see fields.py."""

    reward_timeout_s: float = field(
        default=60.0,
        metadata={
            "help": "[swift-rlx] Seconds that a reward may take for one row, and for one call; then the call is ended"
            " and the row is unscored (or has the X of --reward_on_error value:X)."
        },
    )
    reward_workers: int | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Processes in which synchronous rewards score, at most. Default: a quarter of the"
            " cores, from 2 to 8, and at least one for each reward."
        },
    )
    reward_devices: str | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Accelerator ids that these processes see, e.g. 7. Default: those of the trainer."
        },
    )
    reward_normalize: Literal["none", "zscore", "group"] = field(
        default="none",
        metadata={
            "help": "[swift-rlx] Put several rewards on one scale before their weighted sum: zscore (running mean and"
            " standard deviation of each, clipped to +-3), group (z-score within the completions of a prompt), none."
        },
    )
    reward_ensemble: str = field(
        default="none",
        metadata={
            "help": "[swift-rlx] Make one reward of several --reward_model: mean, wco (the minimum), uwo:C (mean - C x"
            " variance), none (each is a reward of its own)."
        },
    )
    reward_version_change: Literal["stop", "rescore", "restart"] = field(
        default="stop",
        metadata={
            "help": "[swift-rlx] A reward has another version than before, in a run or after a resume: stop, rescore"
            " (answers that wait are scored again), restart (those beside answers of the new one do not train)."
            " Running statistics begin anew in any case."
        },
    )


CHOICES = {
    "reward_normalize": ("none", "zscore", "group"),
    "reward_version_change": ("stop", "rescore", "restart"),
}


def resolve_rewards(values: Any) -> None:
    """Check the fields of the rewards. Raises ConfigError."""
    from swift_rlx.rewards.ensemble import parse_ensemble

    if not 0 < values.reward_timeout_s < math.inf:
        raise ConfigError(
            f"--reward_timeout_s {values.reward_timeout_s:g} is refused: it is the seconds that a row may take, above 0"
        )
    if values.reward_workers is not None and values.reward_workers < 1:
        raise ConfigError(f"--reward_workers {values.reward_workers} is refused: at least one process scores")
    device_ids(values.reward_devices, "reward_devices")
    for name, allowed in CHOICES.items():
        if (value := getattr(values, name)) not in allowed:
            raise ConfigError(
                f"--{name} {value} is refused: it is {', '.join(allowed[:-1])} or {allowed[-1]}"
            )
    parse_ensemble(values.reward_ensemble)


def check_ensemble(args: Any) -> None:
    """Refuse `--reward_ensemble` without at least two reward models, or of no such kind. Raises ConfigError."""
    from swift_rlx.rewards.ensemble import parse_ensemble

    models = len(args.reward_model or [])
    if parse_ensemble(args.reward_ensemble) is not None and models < 2:
        raise ConfigError(
            f"--reward_ensemble {args.reward_ensemble} needs at least two reward models, and there are {models}: give"
            " more --reward_model, or drop it"
        )
