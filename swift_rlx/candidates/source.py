"""Prompts for the scheduler, as many at a time as keep the workers busy: memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from swift_rlx.types import Prompt


class WindowedPrompts:
    """A `PromptSource` over an iterable, of which at most `window` prompts are open at a time.

    To be used in the scheduler's loop; the iterable is asked there too, one prompt ahead.
    """

    def __init__(self, prompts: Iterable[Prompt], window: int) -> None:
        self._left = iter(prompts)
        self._ahead = next(self._left, None)
        self._window = window
        self._open = 0
        self._changed: Callable[[], None] = lambda: None

    def next(self) -> Prompt | None:
        """The next prompt, if one may be open."""
        prompt = self._ahead
        if prompt is None or self._open >= self._window:
            return None
        self._ahead = next(self._left, None)
        self._open += 1
        return prompt

    @property
    def is_exhausted(self) -> bool:
        return self._ahead is None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have `callback` called by `ended`."""
        self._changed = callback

    def ended(self) -> None:
        """A prompt that was handed out is not open any more."""
        self._open -= 1
        self._changed()
