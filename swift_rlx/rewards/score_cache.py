"""Scores that are known already, of rewards that declare that a score depends on nothing but what is scored."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

MAX_SCORES = 1 << 17
"""Some 20 MB."""
NOT_SCORED = frozenset(
    ["prompt_id", "request_id", "trainer_state", "rollout_infos", "response_token_ids", "messages"]
)
"""Columns that name or describe a row; of `messages` the prompt counts, which is all but the last one."""


class ScoreCache:
    """Scores by (reward, version, prompt, completion, columns of the data set). The longest unused ones go first.

    An unscored row is not kept: asking again may help.
    """

    def __init__(self, max_scores: int = MAX_SCORES) -> None:
        self._max = max_scores
        self._scores: OrderedDict[bytes, float] = OrderedDict()

    def get(self, key: bytes) -> float | None:
        """The score, or None where it is not known."""
        if (score := self._scores.get(key)) is not None:
            self._scores.move_to_end(key)
        return score

    def put(self, key: bytes, score: float | None) -> None:
        """Keep a score."""
        if score is None:
            return
        self._scores[key] = score
        self._scores.move_to_end(key)
        if len(self._scores) > self._max:
            self._scores.popitem(last=False)


def score_key(name: str, version: str, completion: Any, columns: Mapping[str, Any]) -> bytes:
    """What a score is known by; `columns` are those of the row."""
    messages = columns.get("messages")
    prompt = messages[:-1] if isinstance(messages, list | tuple) else messages
    data = {column: value for column, value in columns.items() if column not in NOT_SCORED}
    text = json.dumps([name, version, completion, prompt, data], sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
