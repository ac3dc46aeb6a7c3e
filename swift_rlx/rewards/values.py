"""What a reward may return, and turning it into floats."""

import inspect
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import islice
from numbers import Real
from typing import Any

import numpy as np


class NotAReward(TypeError):
    """Something else than a reward was returned. The message begins with a verb: the caller says who and
    where."""


def drain(returned: Any, num_rows: int) -> Any:
    """A generator's values, at most one more than there are rows; anything else as it is.

    Called where the reward's own exceptions are caught: a generator's body runs only here.
    """
    return list(islice(returned, num_rows + 1)) if isinstance(returned, Iterator) else returned


def entries(returned: Any, num_rows: int) -> list[Any]:
    """One entry per row, not yet checked one by one.

    Accepts a list, tuple or other sequence, and one-dimensional numpy arrays and torch tensors on any device.
    One value is not spread over several rows. Raises NotAReward for everything else and for a wrong length.
    """
    _refuse_coroutine(returned)
    expected = f"it must return {num_rows} numbers (or None), one per completion"
    if _is_array(returned):
        if returned.ndim != 1:
            raise NotAReward(f"returned an array of shape {tuple(returned.shape)}: {expected}")
        returned = returned.tolist()
    if not isinstance(returned, Sequence) or isinstance(returned, str | bytes | bytearray):
        raise NotAReward(f"returned {_short(returned)}: {expected}")
    if len(returned) != num_rows:
        raise NotAReward(f"returned {len(returned)} values for {num_rows} completions: {expected}")
    return list(returned)


def number(entry: Any) -> float | None:
    """One entry as a float, possibly not finite, or None for an unscored row.

    Numbers are whatever Python, numpy and torch call a real scalar, bools included. Raises NotAReward for
    anything else.
    """
    _refuse_coroutine(entry)
    if isinstance(entry, np.generic) or (_is_array(entry) and entry.ndim == 0):
        entry = entry.item()
    if entry is None:
        return None
    if not isinstance(entry, Real | Decimal):
        raise NotAReward(f"returned {_short(entry)}: a reward is a number, or None for an unscored row")
    try:
        return float(entry)
    except OverflowError:
        return float("inf")


def _is_array(value: Any) -> bool:
    """Of numpy or torch; torch is not imported here, so that a process that scores without it stays small."""
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def _refuse_coroutine(returned: Any) -> None:
    if inspect.iscoroutine(returned):
        returned.close()
        raise NotAReward("returned a coroutine: declare the reward with `async def`")


def _short(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
