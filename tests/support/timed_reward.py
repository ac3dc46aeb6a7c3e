"""A reward that takes a set time for a row, as a judge or a verifier does; a plugin file of the benchmarks."""

import os
import time

from swift_rlx import register_reward


@register_reward("timed", version="1")
def timed(completions: list[str], **_: object) -> list[float]:
    """How many different characters an answer has, `SCORE_S_A_ROW` seconds later."""
    time.sleep(float(os.environ["SCORE_S_A_ROW"]) * len(completions))
    return [float(len(set(text))) for text in completions]
