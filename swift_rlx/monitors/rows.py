"""Rows for spans that overlap in time: what goes on at once is drawn one above the other."""

from __future__ import annotations

from bisect import bisect_right, insort

MAX_ROWS = 1024
"""More spans at once than this share rows: nothing grows for ever, whatever times a backend reports."""


class Rows:
    """Gives each span a row in which none overlaps it. Spans come as they finish.

    A span takes the row whose last span ended latest among those that ended before it began. For spans in the order
    of their ends this needs no more rows than spans overlap; the lowest free row would need more.
    """

    def __init__(self) -> None:
        self._ends: list[tuple[float, int]] = []  # end of each row's last span, sorted

    def place(self, start_s: float, finish_s: float) -> int:
        """The row, from 0, of a span of these seconds."""
        at = bisect_right(self._ends, (start_s, MAX_ROWS)) - 1
        if at >= 0:
            row = self._ends.pop(at)[1]
        elif len(self._ends) < MAX_ROWS:
            row = len(self._ends)
        else:
            row = self._ends.pop(0)[1]
        insort(self._ends, (finish_s, row))
        return row
