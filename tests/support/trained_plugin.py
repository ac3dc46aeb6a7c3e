"""An external plugin of `swift rlhf` that writes what is trained, in the training step, and may end the process there.

TRAINED_LOG: a file, one JSON line a micro-batch and rank. KILL_AT: the optimizer step in which the process of the last
rank kills itself.
"""

import hashlib
import json
import os
import signal
from typing import Any

from swift_rlx.trainers.rlx_trainer import RLXTrainer

_training_step = RLXTrainer.training_step


def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
    loss = _training_step(self, *args, **kwargs)
    rows = self._picked.rows
    rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
    line = {
        "step": self.state.global_step,
        "rank": rank,
        "prompts": list(dict.fromkeys(f"{row.epoch}/{row.index}" for row in rows)),
        "own": [f"{row.epoch}/{row.index}/{row.member}" for row in self._own_rows()],
        "content": hashlib.sha256(
            b"".join(row.token_ids + row.logprobs + row.fresh for row in rows)
        ).hexdigest(),
        "policy_steps": [row.policy_steps for row in rows],
    }
    with open(os.environ["TRAINED_LOG"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    if os.environ.get("KILL_AT") == str(self.state.global_step) and rank == ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return loss


RLXTrainer.training_step = training_step
