"""Rewards that do what rewards of others do, for every way of running them. Standard library, numpy and torch only."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

HANG_S = 600.0


def number(completion: str) -> float | None:
    """The completion as a number; None where it is "?"; dies, raises or searches for ever where it says so."""
    if completion == "search":
        re.match("(a|aa)+$", "a" * 60 + "b")  # never lets another thread run
    if completion == "die":
        os._exit(3)
    if completion == "raise":
        raise KeyError("no such answer")
    return None if completion == "?" else float(completion)


def each(completion: str, **_: Any) -> float | None:
    if completion == "hang":
        while True:  # as an endless search for a proof
            time.sleep(0.01)
    return number(completion)


def all_at_once(completions: list[str], **columns: Any) -> list[float | None]:
    return [each(one, **columns) for one in completions]


async def each_async(completion: str, **_: Any) -> float | None:
    if completion == "hang":
        await asyncio.sleep(HANG_S)
    return number(completion)


async def all_at_once_async(completions: list[str], **columns: Any) -> list[float | None]:
    return [await each_async(one, **columns) for one in completions]


def limits_itself(completion: str, **_: Any) -> float:
    """As math-verify: an alarm limits the time, and ends a search that would never end."""

    def late(signum: int, frame: Any) -> None:
        raise TimeoutError("verifier")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.05 if completion == "hang" else 30.0)
    try:
        while completion == "hang":
            time.sleep(0.01)
        return 1.0
    except TimeoutError:
        return -1.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def limits_itself_async(completion: str, **_: Any) -> float:
    return limits_itself(completion)


def _returning(name: str, make: Callable[[list[str]], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def returned(completions: list[str], **_: Any) -> Any:
        return make(completions)

    async def returned_async(completions: list[str], **_: Any) -> Any:
        return make(completions)

    returned.__qualname__, returned_async.__qualname__ = name, f"{name}_async"  # where they are found
    return returned, returned_async


def _numpy(completions: list[str]) -> Any:
    import numpy as np

    return np.arange(len(completions), dtype=np.float32)


def _torch(completions: list[str]) -> Any:
    import torch

    return torch.arange(len(completions), dtype=torch.float32, requires_grad=True)


one_value, one_value_async = _returning("one_value", lambda texts: [1.0])
too_few, too_few_async = _returning("too_few", lambda texts: [1.0] * (len(texts) - 1))
too_many, too_many_async = _returning("too_many", lambda texts: [1.0] * (len(texts) + 1))
scalar, scalar_async = _returning("scalar", lambda texts: 1.0)
text, text_async = _returning("text", lambda texts: ["1"] * len(texts))
table, table_async = _returning("table", lambda texts: {"a": 1.0})
generated, generated_async = _returning("generated", lambda texts: (float(at) for at in range(len(texts))))
array, array_async = _returning("array", _numpy)
tensor, tensor_async = _returning("tensor", _torch)


def judged(completion: str, solution: str, **_: Any) -> float | None:
    """None where the right answer cannot be read."""
    return float(completion == solution) if solution.isdigit() else None


async def judged_async(completion: str, solution: str, **_: Any) -> float | None:
    return judged(completion, solution)


def where(completion: str, trainer_state: Any, **_: Any) -> float:
    """The process that scores, and what it sees of the trainer's state."""
    return float(os.getpid()) + trainer_state.global_step / 10


class Configured:
    """Takes the training arguments, as ms-swift's ORM classes do."""

    def __init__(self, args: Any = None, **_: Any) -> None:
        self.scale = args.scale

    def __call__(self, completions: list[str], **_: Any) -> list[float]:
        return [self.scale * len(text) for text in completions]


class Unbuildable:
    def __init__(self) -> None:
        raise RuntimeError("no weights here")

    def __call__(self, completion: str) -> float:
        return 1.0
