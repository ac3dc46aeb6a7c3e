"""An external plugin for tests: completions that claim to be of another policy, `DRIFT` log-probs off per token.

The distance depends on the completion's length and the token's place alone, so that ranks and one process agree.
"""

import os
from typing import Any

import torch

from swift_rlx.trainers.policy_gradient import PolicyGradientTrainer

DRIFT = "SWIFT_RLX_TEST_DRIFT"
_prepare, _fields = PolicyGradientTrainer._prepare_batch_inputs, PolicyGradientTrainer.behavior_fields


def prepare_batch_inputs(self: Any, samples: list[Any]) -> list[dict[str, Any]]:
    self.encoded_of_test = _prepare(self, samples)
    return self.encoded_of_test


def behavior_fields(self: Any, index: int) -> dict[str, torch.Tensor]:
    """In the place of what the engine reports."""
    if not self.model.training:
        return _fields(self, index)
    batch = self.encoded_of_test[index]["grpo_batch"]
    mask = batch.completion_mask.bool()
    place = torch.arange(mask.shape[1]).expand(mask.shape)
    drift = float(os.environ[DRIFT]) * torch.sin(7.0 * mask.sum(1, keepdim=True) + place)
    behavior = (batch.old_per_token_logps.float() - drift).where(mask, 0.0)
    return {"behavior_logprobs": behavior, "staleness": (place % 3).where(mask, 0)}


def install() -> None:
    PolicyGradientTrainer._prepare_batch_inputs = prepare_batch_inputs
    PolicyGradientTrainer.behavior_fields = behavior_fields


if os.environ.get("LOCAL_RANK"):  # a rank of a test's own run; in the test's process a fixture installs
    install()
