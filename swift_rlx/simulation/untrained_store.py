"""A trajectory store as far as a simulation needs one: which groups have tokens that never trained."""

from __future__ import annotations

import heapq

from swift_rlx.scheduler import MAX_REUSE


class UntrainedStore:
    """Groups by the tokens that did not train when they were fresh, because they were over age.

    A batch has the groups with most of them; once these have trained, a group waits behind those with any, until it has
    trained `MAX_REUSE` times.
    """

    def __init__(self, batch_groups: int) -> None:
        self._batch_groups = batch_groups
        self._groups: list[tuple[int, int, int]] = []
        """(-tokens that never trained, uses, index of the prompt)"""

    def add(self, index: int, untrained: int) -> None:
        """A group was trained and is stored, with this many tokens that did not train."""
        heapq.heappush(self._groups, (-untrained, 0, index))

    @property
    def has_batch(self) -> bool:
        """Whether there are groups for a whole batch."""
        return len(self._groups) >= self._batch_groups

    def take_batch(self) -> list[tuple[int, int]]:
        """The groups of a batch, as prompt and number of tokens that train for the first time."""
        taken = [heapq.heappop(self._groups) for _ in range(self._batch_groups)]
        for _, uses, index in taken:
            if uses + 1 < MAX_REUSE:
                heapq.heappush(self._groups, (0, uses + 1, index))
        return [(index, -negative) for negative, _, index in taken]
