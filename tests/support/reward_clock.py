"""Notes when each optimizer step ended, and saves the adapter then; the same callback in every contestant.

Ms-swift loads this file through `external_plugins`, `--callbacks reward_clock` adds the callback; TRL is given it.
`REWARD_CLOCK` names the folder: `events.jsonl`, times of the system's monotonic clock, and `adapters/<step>`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback


class RewardClock(TrainerCallback):
    """The constructor is called as ms-swift does it.

    `ready` is noted where nothing is left to be loaded and no answer has been asked for: at the first step, or where
    workers are started in it, when these have the first weights.
    """

    def __init__(self, args: Any = None, trainer: Any = None) -> None:
        self.folder = Path(os.environ["REWARD_CLOCK"])
        self.waits_for_workers = False

    def note(self, event: str, **values: Any) -> None:
        """Add a line."""
        line = json.dumps({"event": event, "at_s": time.monotonic(), **values})
        with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.waits_for_workers = bool(getattr(args, "async_rollout", False))
        if self.waits_for_workers:
            self._follow_workers()

    def _follow_workers(self) -> None:
        from swift_rlx.trainers.pipeline import RolloutPipeline

        start = RolloutPipeline._make_backends

        async def started(pipeline: RolloutPipeline) -> Any:
            backends = await start(pipeline)
            self.note("ready")
            return backends

        RolloutPipeline._make_backends = started  # type: ignore[method-assign]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0 and not self.waits_for_workers:
            self.note("ready")

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.note("step", step=state.global_step)
        model.save_pretrained(self.folder / "adapters" / str(state.global_step))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "completions/mean_length" in logs:
            length, reward = float(logs["completions/mean_length"]), float(logs["reward"])
            self.note("log", step=state.global_step, mean_length=length, reward=reward)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.note("end")


if "swift" in sys.modules:
    from swift.callbacks import callbacks_map

    callbacks_map["reward_clock"] = RewardClock
