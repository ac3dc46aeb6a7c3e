"""A `--reward_model_plugin` that notes the process and the thread of each call, and how many rows it had."""

import os
import threading
from pathlib import Path
from typing import Any

from swift.rewards import rm_plugins
from swift.rewards.rm_plugin import DefaultRMPlugin


class AskedBy(DefaultRMPlugin):
    """Scores as ms-swift's default does."""

    def __call__(self, inputs: list[dict[str, Any]], **columns: Any) -> Any:
        with Path(os.environ["ASKED_BY"]).open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()},{threading.current_thread().name},{len(inputs)}\n")
        return super().__call__(inputs, **columns)


rm_plugins["asked_by"] = AskedBy
