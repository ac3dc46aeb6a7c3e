"""The arguments of the off-policy correction, and what they mean together."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from swift_rlx.errors import ConfigError

# No `from __future__ import annotations` here: ms-swift's parser evaluates the annotations in another module.

Correction = Literal[
    "auto", "none", "token_truncate", "token_mask", "two_sided_mask", "sequence_product", "prefix_product"
]
SHORT_COMPLETION = 256
"""Tokens up to which the product of all ratios is better than token weights."""
WITHOUT_CAP = ("none", "two_sided_mask")
STOCK_FILTER = "off_policy_sequence_mask_delta"
"""ms-swift's own argument, which the asynchronous pipeline honors."""


@dataclass
class OffPolicyFields:
    """New fields of `swift rlhf`; see fields.py."""

    off_policy_correction: Correction = field(
        default="auto",
        metadata={
            "help": "[swift-rlx] Importance weights for samples of older weights. auto: token_truncate; for rloo with"
            f" --max_completion_length up to {SHORT_COMPLETION} sequence_product. token_mask: 0 above the cap."
            " two_sided_mask: 0 outside [0.5, 5]. prefix_product: product of the ratios up to the token."
        },
    )
    off_policy_cap: float = field(
        default=2.0,
        metadata={
            "help": "[swift-rlx] Upper bound of the importance weights (token_mask: weight 0 above it)."
        },
    )
    off_policy_k3_max: float | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Drop completions whose mean k3 estimate of KL(behavior || policy) per token is above"
            " it, for example 0.05. Default: none is dropped."
        },
    )
    ess_gate: bool = field(
        default=False,
        metadata={
            "help": "[swift-rlx] Skip a generation batch whose effective sample size is below 0.5 of its tokens"
            " (token weights) or 0.1 of its completions (product weights). Costs a forward pass per batch."
        },
    )


FIELD_DEFAULTS = {each.name: each.default for each in fields(OffPolicyFields)}


def resolve_correction(name: str, algorithm_name: str, max_completion_length: int) -> str:
    """The rule of `algorithms.importance_weights` that `--off_policy_correction name` stands for."""
    if name != "auto":
        return name
    is_short = algorithm_name == "rloo" and max_completion_length <= SHORT_COMPLETION
    return "sequence_product" if is_short else "token_truncate"


def resolve_off_policy(values: Any, algorithm_name: str) -> None:
    """Check the fields and replace `auto` by what it stands for, in place; after `resolve_rollout`.

    Raises ConfigError for a value out of range and for a field that has no effect.
    """
    if not values.async_rollout and values.rlx_offline is None:
        _refuse_without_pipeline(values)
    if not 1.0 <= values.off_policy_cap < math.inf:
        raise ConfigError(
            f"--off_policy_cap {values.off_policy_cap:g} is refused: weights are cut above it, and those of the"
            " current policy are 1; use 1 or more, for example 2"
        )
    for name in ("off_policy_k3_max", STOCK_FILTER):
        value = getattr(values, name)
        if value is not None and not 0.0 < value < math.inf:
            raise ConfigError(f"--{name} {value:g} is refused: it bounds a distance in nats; use more than 0")
    has_cap = values.off_policy_cap != FIELD_DEFAULTS["off_policy_cap"]
    if has_cap and values.off_policy_correction in WITHOUT_CAP:
        raise ConfigError(
            f"--off_policy_cap {values.off_policy_cap:g} has no effect with --off_policy_correction"
            f" {values.off_policy_correction}; drop it, or use token_truncate"
        )
    values.off_policy_correction = resolve_correction(
        values.off_policy_correction, algorithm_name, _longest(values)
    )


def _longest(values: Any) -> int:
    """Tokens of the longest completion that may train."""
    offline = values.rlx_offline
    return int(values.max_completion_length if offline is None else offline["longest_completion"])


def _refuse_without_pipeline(values: Any) -> None:
    given = {name: getattr(values, name) for name in (*FIELD_DEFAULTS, STOCK_FILTER)}
    changed = {name: value for name, value in given.items() if value != FIELD_DEFAULTS.get(name)}
    if changed:
        words = " ".join(f"--{name} {str(value).lower()}" for name, value in changed.items())
        raise ConfigError(
            f"{words} has no effect without the asynchronous pipeline, whose samples may be of older weights; drop"
            " it, or set --async_rollout true and --max_staleness 1 or more"
        )
