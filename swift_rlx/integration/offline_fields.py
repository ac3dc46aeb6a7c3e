"""The arguments of a run on stored groups alone, besides those of the store."""

from dataclasses import dataclass, field, fields

# No `from __future__ import annotations` here: ms-swift's parser evaluates the annotations in another module.


@dataclass
class OfflineFields:
    """New fields of `swift rlhf`; see fields.py."""

    offline_settings: str | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Settings of --offline_objective as a JSON object, for a store as --dataset."
            ' softmax_ce: tau, length_norm, skip_uninformative. awac: temperature, advantages ("group" or "reward"),'
            " floor, low_share, length_norm. cql: alpha, gamma, q_scale, td_from."
        },
    )
    store_recipe: str | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] What the rewards that train are made of, as `swift-rlx store info` shows it, where a"
            " store as --dataset has rewards of several kinds."
        },
    )
    constraint_filter: str = field(
        default="none",
        metadata={
            "help": "[swift-rlx] What becomes of stored completions whose words, length or entities are unlike the"
            " rest of a store as --dataset. reject: they leave the loss, not its denominator. penalty:X: their reward"
            " is lower by X for each constraint that does not hold."
        },
    )
    constraint_settings: str | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Settings of --constraint_filter as a JSON object: constraints (some of words, length,"
            ' entities), lengths (two factors), min_overlap, quantile, entities ("patterns" or "chinese").'
        },
    )


FIELD_DEFAULTS = {each.name: each.default for each in fields(OfflineFields)}
