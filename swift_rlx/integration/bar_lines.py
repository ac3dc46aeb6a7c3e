"""Lines of the log each on a line of their own, where a progress bar is drawn on the same stream.

A bar stays at the end of its line, and what is written next would follow behind it.
"""

import time
from typing import Any

from tqdm import tqdm

TOGETHER_S = 0.05
"""Lines that follow each other so soon have no bar between them."""


class BesideBars:
    """A text stream like `stream`. On a terminal bars are taken away for the line and drawn again below it.

    In a file, where nothing can be taken away, the line begins behind the end of the bar's.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._wrote_s = 0.0

    def write(self, text: str) -> int:
        """Write whole lines; returns what the stream does."""
        bars = [bar for bar in list(getattr(tqdm, "_instances", ())) if hasattr(bar, "start_t")]
        if bars and self._stream.isatty():
            with tqdm.external_write_mode(file=self._stream):
                return int(self._stream.write(text))
        begin = "\n" if self._is_behind(bars) else ""
        self._wrote_s = time.time()
        return int(self._stream.write(begin + text))

    def _is_behind(self, bars: list[Any]) -> bool:
        here = [bar for bar in bars if bar.fp == self._stream]
        is_alone = time.time() - self._wrote_s > TOGETHER_S
        return any(is_alone or bar.last_print_t > self._wrote_s for bar in here)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
