"""An external plugin of `swift rlhf` with a reward that fails on one row.

CHAOS_REWARD: `raise` or `hang`. The row is CHAOS_ROW, the first time that it is scored; CHAOS_FOLDER remembers it.
"""

import os
import time
from pathlib import Path

from swift_rlx import register_reward

FAILED = Path(os.environ["CHAOS_FOLDER"], "reward-failed")


@register_reward("fails_on_a_row")
def fails_on_a_row(completion: str, row: int, **_: object) -> float:
    """The share of vowels, but for one answer."""
    if row == int(os.environ["CHAOS_ROW"]) and not FAILED.exists():
        FAILED.write_text(str(time.monotonic()), encoding="ascii")
        if os.environ["CHAOS_REWARD"] == "raise":
            raise ArithmeticError("no verdict for this row")
        time.sleep(3600)
    return sum(letter in "aeiou" for letter in completion) / max(1, len(completion))
