"""Which numbers of a sampling make a distribution."""

from __future__ import annotations

import math

from swift_rlx.types import SamplingParams


def sampling_fault(sampling: SamplingParams) -> str | None:
    """What is wrong with it, as a sentence, or None."""
    rules = {
        "max_tokens": (sampling.max_tokens >= 1, "at least 1"),
        "temperature": (0 <= sampling.temperature < math.inf, "at least 0"),
        "top_k": (sampling.top_k >= 0, "at least 0 (0: off)"),
        "top_p": (0 < sampling.top_p <= 1, "above 0 and at most 1"),
        "min_p": (0 <= sampling.min_p <= 1, "from 0 to 1"),
        "repetition_penalty": (0 < sampling.repetition_penalty < math.inf, "above 0"),
    }
    for name, (holds, allowed) in rules.items():
        if not holds:
            return f"{name} {getattr(sampling, name):g} is refused: it must be {allowed}"
    return None
