"""Rewards of the pipeline's tests; `vowels` can be raised by a random model within a few steps."""

import asyncio
import signal

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


@register_reward("broken")
def broken(completion: str, **_: object) -> float:
    """Fails always."""
    raise RuntimeError("no verdict today")


@register_reward("slow")
async def slow(completion: str, **_: object) -> float:
    """Takes longer than a collective may."""
    await asyncio.sleep(10)
    return vowels(completion)
