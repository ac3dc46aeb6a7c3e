"""An external plugin for tests: says what is left of the process group when the interpreter is about to finalize.

It is imported before the training, and exit callbacks run in reverse: its own is the last. With HOLD_TRAINER the
trainer outlives `swift rlhf`, as one that was built in a script does.
"""

import atexit
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from swift.rlhf_trainers import GRPOTrainer

HELD: list[Any] = []


def thread_names() -> list[str]:
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ends while it is looked at
            names.append(path.read_text().strip())
    return sorted(names)


def write(moment: str) -> None:
    state = {"group": dist.is_initialized(), "gloo_threads": [n for n in thread_names() if "gloo" in n]}
    path = Path(os.environ["WITNESS"]) / f"{moment}-{os.environ['RANK']}.json"
    path.write_text(json.dumps(state), encoding="utf-8")


def train(self: Any, *args: Any, **kwargs: Any) -> Any:
    """In the place of `GRPOTrainer.train`."""
    if "HOLD_TRAINER" in os.environ:
        HELD.append(self)
    result = stock_train(self, *args, **kwargs)
    write("trained")
    return result


stock_train = GRPOTrainer.train
GRPOTrainer.train = train
atexit.register(write, "end")
