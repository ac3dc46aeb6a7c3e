"""The argument of the shared prompt, and what it cannot be used with."""

from dataclasses import dataclass, field
from typing import Any

from swift_rlx.errors import ConfigError

# No `from __future__ import annotations` here: ms-swift's parser evaluates the annotations in another module.


@dataclass
class SharePromptField:
    """A new field of `swift rlhf`; see fields.py."""

    share_prompt: bool = field(
        default=False,
        metadata={
            "help": "[swift-rlx] Compute the prompt of a group once in the training's forward and backward pass,"
            " instead of once a completion. For text models with full attention; the results are equal up to rounding."
        },
    )


def refuse_share_prompt(values: Any) -> None:
    """Raise ConfigError, one sentence, for a run in which prompts cannot be shared or none is there to be shared.

    What depends on the model is refused when it is loaded.
    """
    if not values.share_prompt:
        return
    refused = "--share_prompt true cannot be used with"
    if values.attn_impl not in (None, "sdpa"):
        raise ConfigError(
            f"{refused} --attn_impl {values.attn_impl}: a prompt is shared in torch's own attention; use"
            " --attn_impl sdpa or drop the flag"
        )
    if getattr(values, "padding_free", False):
        raise ConfigError(
            f"{refused} --padding_free true, which packs the rows in its own way; use one of them"
        )
    if getattr(values, "tuner_type", None) in ("reft", "longlora"):
        raise ConfigError(
            f"{refused} --tuner_type {values.tuner_type}, which treats a token by its place in the row; use"
            " --tuner_type lora or drop the flag"
        )
    for name in ("deepspeed", "fsdp"):
        if getattr(values, name, None):
            raise ConfigError(
                f"{refused} --{name} {getattr(values, name)}, with which it was never run; use DDP or drop the flag"
            )
    for name in ("num_generations", "per_device_train_batch_size"):
        if getattr(values, name) == 1:
            raise ConfigError(
                f"--share_prompt true has no effect with --{name} 1: no two rows of a micro-batch have the same"
                " prompt; raise it or drop the flag"
            )
