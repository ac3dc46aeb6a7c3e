"""The reward."""

import re
from collections.abc import Sequence

from swift_rlx_format_length.text import ends_like_a_sentence, repeated_share, split_thinking


class FormatLength:
    """The mean of up to four scores between 0 and 1, of the answer: what follows a `<think>` block, if there
    is one.

    length: 1 from `min_length` to `max_length`, falling to 0 in a straight line over `softness` times that
    bound. ending: 1 if the answer ends like a sentence, in whatever script. Left out with `ending=False`.
    repetition: 1 up to a share `tolerance` of repeated character n-grams of `ngram_size`, then falling to 0.
    pattern: 1 if the regular expression is found in the answer. Left out without a pattern.

    0 altogether for an empty answer, for thinking tags that are out of order or never closed, and, with
    `require_thinking`, for a completion without a thinking block.

    unit: 'characters' of the answer without surrounding space, or 'tokens' of the whole completion as
    ms-swift counts them (None = unscored where the engine reports none).

    Columns `min_length`, `max_length` and `pattern` of the data set replace the settings for their row.
    Raises ValueError for settings out of range.
    """

    def __init__(
        self,
        *,
        min_length: int = 1,
        max_length: int = 1000,
        unit: str = "characters",
        softness: float = 0.5,
        ending: bool = True,
        ngram_size: int = 10,
        tolerance: float = 0.2,
        pattern: str | None = None,
        require_thinking: bool = False,
    ) -> None:
        if unit not in ("characters", "tokens"):
            raise ValueError(f"unit is 'characters' or 'tokens', got {unit!r}")
        if not (softness >= 0 and 0 <= tolerance < 1 and ngram_size >= 1):
            raise ValueError(
                f"softness must be >= 0, tolerance in [0, 1), ngram_size >= 1; got {softness}, {tolerance}, "
                f"{ngram_size}"
            )
        _check_window(min_length, max_length)
        self.min_length, self.max_length, self.unit, self.softness = min_length, max_length, unit, softness
        self.ending, self.ngram_size, self.tolerance = ending, ngram_size, tolerance
        self.pattern = None if pattern is None else re.compile(pattern)
        self.require_thinking = require_thinking

    def __call__(
        self,
        completion: str,
        *,
        min_length: int | None = None,
        max_length: int | None = None,
        pattern: str | None = None,
        response_token_ids: Sequence[Sequence[int]] | None = None,
        **columns: object,
    ) -> float | None:
        low = self.min_length if min_length is None else min_length
        high = self.max_length if max_length is None else max_length
        _check_window(low, high)
        parts = split_thinking(completion)
        if parts is None or not parts.answer.strip() or (self.require_thinking and parts.thinking is None):
            return 0.0
        answer = parts.answer.strip()
        length = len(answer) if self.unit == "characters" else sum(map(len, response_token_ids or ()))
        if length == 0:
            return None
        scores = [self._in_window(length, low, high), self._fresh(answer)]
        if self.ending:
            scores.append(float(ends_like_a_sentence(answer)))
        wanted = self.pattern if pattern is None else re.compile(pattern)
        if wanted is not None:
            scores.append(float(wanted.search(answer) is not None))
        return sum(scores) / len(scores)

    def _in_window(self, length: int, low: int, high: int) -> float:
        bound = low if length < low else high
        distance = max(low - length, length - high, 0)
        if distance == 0:
            return 1.0
        width = self.softness * bound
        return max(0.0, 1 - distance / width) if width else 0.0

    def _fresh(self, answer: str) -> float:
        repeated = repeated_share(answer, self.ngram_size)
        return min(1.0, (1 - repeated) / (1 - self.tolerance))


def _check_window(low: int, high: int) -> None:
    if not 0 <= low <= high or high < 1:
        raise ValueError(
            f"lengths must be 0 <= min_length <= max_length and max_length >= 1, got {low} and {high}"
        )
