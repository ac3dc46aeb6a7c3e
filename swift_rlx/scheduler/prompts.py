"""Where prompts come from, in an order that is a function of (seed, epoch, index) alone."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from swift_rlx.errors import SchedulingError
from swift_rlx.types import Prompt


class PromptSource(Protocol):
    """Hands out prompts one by one."""

    def next(self) -> Prompt | None:
        """The next prompt; None: none now. Call again once `on_change` has been called."""

    @property
    def is_exhausted(self) -> bool:
        """Whether no prompt will ever come again."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when prompts were added or the end has been told."""


class PromptFeed:
    """A source that others fill: the trainer, which takes rows from the data loader ahead of its step."""

    def __init__(self, prompts: Iterable[Prompt] = ()) -> None:
        self._waiting = deque(prompts)
        self._is_closed = False
        self._changed: Callable[[], None] = lambda: None

    def put(self, prompts: Iterable[Prompt]) -> None:
        """Add prompts behind those that wait."""
        if self._is_closed:
            raise SchedulingError("prompts were put into a feed after its end")
        self._waiting.extend(prompts)
        self._changed()

    def replace(self, prompt: Prompt) -> None:
        """Add a prompt in the place of a group that was dropped; also after the end, from `on_end` of that group."""
        self._waiting.append(prompt)
        self._changed()

    def close(self) -> None:
        """No prompt will be added any more but by `replace`."""
        self._is_closed = True
        self._changed()

    def next(self) -> Prompt | None:
        """The prompt that was put first."""
        return self._waiting.popleft() if self._waiting else None

    @property
    def is_exhausted(self) -> bool:
        return self._is_closed and not self._waiting

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called by `put` and `close`."""
        self._changed = callback


class IterableSource:
    """A source over an iterable, which may be endless and is read one prompt ahead."""

    def __init__(self, prompts: Iterable[Prompt]) -> None:
        self._iterator = iter(prompts)
        self._ahead = next(self._iterator, None)

    def next(self) -> Prompt | None:
        """The next prompt of the iterable."""
        prompt, self._ahead = self._ahead, next(self._iterator, None) if self._ahead else None
        return prompt

    @property
    def is_exhausted(self) -> bool:
        return self._ahead is None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Nothing is ever added."""


def epoch_order(num_prompts: int, seed: int, epoch: int) -> list[int]:
    """The permutation of the indices in which an epoch admits its prompts."""
    order = list(range(num_prompts))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def completion_seed(seed: int, prompt: Prompt, member: int) -> int:
    """Sampling seed in [0, 2^31) of one completion; differs between members, prompts, epochs and runs.

    A retry has the same seed, so that a fault of a worker does not change what is sampled.
    """
    text = f"{seed}/{prompt.epoch}/{prompt.index}/{member}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") >> 1
