"""Real runs on the asynchronous pipeline, and what they picked up."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs

ASYNC: dict[str, Any] = {"async_rollout": True, "rollout_backend": "transformers", "reward_funcs": ["vowels"]}
PLUGIN = Path(__file__).with_name("vowels_plugin.py")


class PickedUp:
    """The batches of a run in the order of training, as every rank gets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from swift_rlx.trainers import async_rollout

        self.batches: list[Any] = []
        decode = async_rollout.decode_batch

        def kept(message: bytes) -> Any:
            self.batches.append(decode(message))
            return self.batches[-1]

        monkeypatch.setattr(async_rollout, "decode_batch", kept)

    def prompts(self) -> list[tuple[int, int]]:
        """(epoch, row) of each trained group, in order."""
        return [
            key
            for batch in self.batches
            for key in dict.fromkeys((row.epoch, row.index) for row in batch.rows if not row.is_filler)
        ]

    def staleness(self) -> Counter[int]:
        """Of all tokens in the loss."""
        ages: Counter[int] = Counter()
        for batch in self.batches:
            for row in batch.rows:
                mask = np.frombuffer(row.fresh, bool)
                ages.update(np.frombuffer(row.staleness, "<i4")[mask].tolist())
        return ages


def train(model: Path, data: Path, output: Path, **changes: Any) -> Any:
    """A run on the pipeline in this process; returns the trainer."""
    return runs.train(
        model, data, output, **({"rlhf_type": "rloo", "external_plugins": [str(PLUGIN)]} | ASYNC | changes)
    )
