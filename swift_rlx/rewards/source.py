"""A reward that is an object with a name, a version and `score`, as the client of a reward service is.

class Judge:
    name, version = "judge", "v3"

    async def score(self, rows: Sequence[RewardRow]) -> list[float | None]:
        ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True)
class RewardRow:
    """A completion to score, with its columns: those of the data set, and `messages`, which end with it."""

    completion: Any
    columns: Mapping[str, Any]


@runtime_checkable
class RewardSource(Protocol):
    """Scores rows. Called many times at once, from one asyncio loop.

    version: what it scores with now. It may change between calls; scores made while it changed are made again. An
    optional `limits` (RateLimits) says how fast it may be asked.
    """

    @property
    def name(self) -> str:
        """As in `--reward_funcs`."""

    @property
    def version(self) -> str:
        """Told apart in stored scores and statistics."""

    async def score(self, rows: Sequence[RewardRow]) -> list[float | None]:
        """A number or None for each row, in order.

        What it raises is a failure of these rows. Where it `is_transient` the call is made again after a while.
        """


def is_source(target: Any) -> bool:
    """Whether an object (not a class) is a reward source."""
    return not isinstance(target, type) and isinstance(target, RewardSource)


class SourceCall:
    """A source as the function of a reward of the list form."""

    def __init__(self, source: RewardSource) -> None:
        self.source = source

    async def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        rows = [
            RewardRow(
                completion,
                {name: value[at] if isinstance(value, list) else value for name, value in columns.items()},
            )
            for at, completion in enumerate(completions)
        ]
        return await self.source.score(rows)
