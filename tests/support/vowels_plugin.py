"""Rewards of the pipeline's tests; `vowels` can be raised by a random model within a few steps."""

import asyncio
import functools
import os
import signal
import time
from pathlib import Path

from swift_rlx import register_reward


@register_reward("vowels", version="1")
def vowels(completion: str, **_: object) -> float:
    """The share of vowels."""
    return sum(letter in "aeiou" for letter in completion) / max(1, len(completion))


@register_reward("flat_or_vowels")
def flat_or_vowels(completion: str, flat: int, **_: object) -> float:
    """The same for all answers of a prompt whose column `flat` is 1."""
    return 0.5 if flat else vowels(completion) + len(completion) / 1000


@register_reward("with_alarm")
def with_alarm(completion: str, **_: object) -> float:
    """Sets a time limit by signal, as math-verify does, and like it hides that it could not."""
    try:
        before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    except ValueError:
        return 0.0
    signal.signal(signal.SIGALRM, before)
    return 1.0


@register_reward("with_uncaught_alarm")
def with_uncaught_alarm(completion: str, **_: object) -> float:
    """Sets a time limit by signal, and does not expect to be refused."""
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, before)
    return 1.0


@register_reward("broken")
def broken(completion: str, **_: object) -> float:
    """Fails always; notes when, where it is told to."""
    if "FAILED_AT" in os.environ:
        Path(os.environ["FAILED_AT"]).write_text(str(time.time()), encoding="utf-8")
    raise RuntimeError("no verdict today")


@register_reward("fails_on_odd")
def fails_on_odd(completion: str, row: int, **_: object) -> float:
    """Fails for rows of an odd number."""
    if row % 2:
        raise ArithmeticError("odd")
    return vowels(completion)


@register_reward("hangs")
def hangs(completion: str, **_: object) -> float:
    """Stops to answer once the file `HANG` is there."""
    while Path(os.environ["HANG"]).exists():
        time.sleep(3600)
    return vowels(completion)


@register_reward("fails_then")
def fails_then(completion: str, **_: object) -> float:
    """Fails once the file `FAIL` is there; until then it does not answer either."""
    while Path(os.environ["HANG"]).exists() and not Path(os.environ["FAIL"]).exists():
        time.sleep(0.05)
    if Path(os.environ["FAIL"]).exists():
        raise RuntimeError("no verdict today")
    return 0.0


@register_reward("slow_at_first")
async def slow_at_first(completion: str, **_: object) -> float:
    """Answers nobody for twelve seconds, which is longer than a collective may take."""
    await asyncio.sleep(_first_call_s() + 12 - time.monotonic())
    return vowels(completion)


@functools.cache
def _first_call_s() -> float:
    return time.monotonic()


@register_reward("ranks_batch", version="5", scope="batch")
def ranks_batch(completions: list[str], **_: object) -> list[float]:
    """The place of each answer among those of the whole batch, from 0 to 1; notes each call."""
    with Path(os.environ["BATCHES"]).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {len(completions)}\n")
    order = sorted(range(len(completions)), key=lambda at: (vowels(completions[at]), at))
    return [order.index(at) / len(completions) for at in range(len(completions))]
