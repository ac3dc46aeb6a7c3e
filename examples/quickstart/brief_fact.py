"""The reward of the quickstart: a completion should be one short line that ends with a full stop.

`swift rlhf` loads this file through `external_plugins`; after that `brief_fact` works in `reward_funcs`.
"""

from swift_rlx import register_reward

MAX_WORDS = 10  # full marks up to here
NO_CREDIT_WORDS = 15  # no marks for length from here on


def length_score(completion: str) -> float:
    """1 for one to ten words, falling evenly to 0 at fifteen; an empty completion gets 0."""
    num_words = len(completion.split())
    if num_words == 0:
        return 0.0
    return min(1.0, max(0.0, (NO_CREDIT_WORDS - num_words) / (NO_CREDIT_WORDS - MAX_WORDS)))


def shape_score(completion: str) -> float:
    """1 for exactly one line that ends with a full stop, else 0."""
    lines = completion.strip().splitlines()
    return float(len(lines) == 1 and lines[0].endswith("."))


def score(completion: str) -> float:
    """Between 0 and 1: half for the length, half for the shape."""
    return 0.5 * length_score(completion) + 0.5 * shape_score(completion)


@register_reward("brief_fact", version="1")
def brief_fact(completion: str, **columns: object) -> float:
    return score(completion)
