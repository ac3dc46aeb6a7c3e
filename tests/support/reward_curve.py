"""When a held-out reward is reached, and how fast a run was, from the times of its steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

WARM_UP_STEPS = 2


def time_to(
    goal: float, times_s: Sequence[float], reward_at: Callable[[int], float], every: int = 1
) -> float | None:
    """Seconds until the reward first reaches `goal`, on the straight line between two checkpoints; None if never.

    `times_s[k]`: when step k ended, [0] is the start. `reward_at` is asked of each `every`-th step from 0 on, no
    further than needed.
    """
    before = reward_at(0)
    if before >= goal:
        return times_s[0]
    for step in range(every, len(times_s), every):
        after = reward_at(step)
        if after >= goal:
            share = (goal - before) / (after - before)
            return times_s[step - every] + share * (times_s[step] - times_s[step - every])
        before = after
    return None


def rates(times_s: Sequence[float], tokens: Sequence[int]) -> dict[str, float]:
    """Steps per hour and tokens per second after two steps. `tokens[k]`: trained in step k + 1."""
    first = min(WARM_UP_STEPS, len(tokens) - 1)
    seconds = times_s[-1] - times_s[first]
    return {
        "steps_per_h": 3600 * (len(tokens) - first) / seconds,
        "tokens_per_s": sum(tokens[first:]) / seconds,
    }


def times_of(events: Sequence[dict[str, Any]], begin_s: float) -> tuple[float, list[float]]:
    """Seconds from the start of the command until all was loaded, and from then to the end of each step, [0] = 0.

    Raises ValueError for a run that did not end.
    """
    at = {event["event"]: event["at_s"] for event in events}
    if "end" not in at:
        raise ValueError("the run has no end")
    steps = [event["at_s"] - at["ready"] for event in events if event["event"] == "step"]
    return at["ready"] - begin_s, [0.0, *steps]


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, standard deviation and range over the seeds; no mean where one of them did not get there."""
    found = [value for value in values if value is not None]
    if not found or len(found) < len(values):
        return {"mean": None, "sd": None, "reached": len(found), "of": len(values)}
    return {
        "mean": statistics.fmean(found),
        "sd": statistics.stdev(found) if len(found) > 1 else None,
        "min": min(found),
        "max": max(found),
        "reached": len(found),
        "of": len(values),
    }
