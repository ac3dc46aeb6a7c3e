"""`--share_prompt true`: with what it is refused, and with what it is not."""

from types import SimpleNamespace
from typing import Any

import pytest

from swift_rlx.errors import ConfigError
from swift_rlx.integration.share_prompt_field import refuse_share_prompt


def given(**changes: Any) -> SimpleNamespace:
    stock = {"attn_impl": None, "num_generations": 4, "per_device_train_batch_size": 8, "share_prompt": True}
    return SimpleNamespace(**stock | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attn_impl": "flash_attention_2"},
            "with --attn_impl flash_attention_2: a prompt is shared in torch's",
        ),
        ({"padding_free": True}, "with --padding_free true, which packs the rows in its own way"),
        ({"tuner_type": "reft"}, "with --tuner_type reft, which treats a token by its place"),
        ({"deepspeed": "zero3"}, "with --deepspeed zero3, with which it was never run; use DDP"),
        ({"fsdp": "fsdp2"}, "with --fsdp fsdp2, with which it was never run; use DDP"),
        ({"num_generations": 1}, "has no effect with --num_generations 1: no two rows"),
        ({"per_device_train_batch_size": 1}, "has no effect with --per_device_train_batch_size 1"),
    ],
)
def test_a_run_that_cannot_share_its_prompts_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse_share_prompt(given(**changes))
    refuse_share_prompt(given(share_prompt=False, **changes))


def test_a_run_that_can_is_accepted() -> None:
    refuse_share_prompt(given())
    more = {
        "attn_impl": "sdpa",
        "tuner_type": "full",
        "deepspeed": None,
        "fsdp": "",
        "gradient_checkpointing": True,
    }
    refuse_share_prompt(given(padding_free=False, **more))
