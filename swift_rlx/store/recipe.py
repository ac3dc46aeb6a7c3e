"""What a reward is made of, as text: sources with versions and weights, and how they are put on one scale.

    accuracy@1.0                                    one source as it is
    zscore(dataset): 1*accuracy@1.0 + 0.5*human@2   two, each as z-score over all rows

Rewards of two recipes are on different scales, so they are never in one batch.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from swift_rlx.errors import StoreError
from swift_rlx.store.moments import FloatArray, Moments, zscore

_SOURCE = re.compile(r"(?P<weight>[-+.e\d]+)\*(?P<name>[^@]+)@(?P<version>.*)")
_TEXT = re.compile(r"(?:zscore\((?P<scope>\w+)\): |weighted: )(?P<sources>.+)")


class Scale(enum.Enum):
    """How the values of a source become comparable with those of others."""

    RAW = "none"
    DATASET = "dataset"
    """z-score over all rows of the store."""
    QUERY = "query"
    """z-score over the answers of a prompt."""


@dataclass(frozen=True, slots=True)
class Source:
    """A reward function, or a kind of scores by people, of one version."""

    name: str
    version: str
    weight: float = 1.0


def parse_sources(text: str) -> tuple[Source, ...]:
    """Sources as a recipe lists them, `1*accuracy@1.0 + 0.5*human@2`; none of other text."""
    sources = []
    for part in text.split(" + "):
        if (found := _SOURCE.fullmatch(part)) is None:
            return ()
        sources.append(Source(found["name"], found["version"], float(found["weight"])))
    return tuple(sources)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sources and their scale. Names and versions have no ` + `, `@` and `*`."""

    sources: tuple[Source, ...]
    scale: Scale = Scale.RAW

    def __post_init__(self) -> None:
        for source in self.sources:
            if any(mark in source.name + source.version for mark in ("@", "*", " + ")) or not source.name:
                raise StoreError(
                    f"the reward '{source.name}' of version '{source.version}' cannot be named in a store; use"
                    " names and versions without @, * and ' + '"
                )
        if not self.sources or not any(source.weight for source in self.sources):
            raise StoreError("a reward is made of at least one source with a weight other than 0")

    def __str__(self) -> str:
        parts = [f"{source.weight:g}*{source.name}@{source.version}" for source in self.sources]
        head = "weighted: " if self.scale is Scale.RAW else f"zscore({self.scale.value}): "
        return head + " + ".join(parts)

    @classmethod
    def parse(cls, text: str) -> Recipe | None:
        """What `str` gave, None for other text."""
        found = _TEXT.fullmatch(text)
        if found is None or not (sources := parse_sources(found["sources"])):
            return None
        return cls(sources, Scale(found["scope"] or "none"))

    def rewards(self, values: Mapping[str, FloatArray], moments: Mapping[str, Moments]) -> FloatArray:
        """The reward of each row, [B]: the weighted sum of its sources on their scale.

        `values`: of each source, [B], NaN where it gave none; its weight goes to the others then, so that the row
        stays on the scale of its siblings. NaN where no source of a weight other than 0 gave a value. `moments`: of
        each source over the scope of the scale.
        """
        total: FloatArray = np.zeros(len(values[self.sources[0].name]))
        available = np.zeros_like(total)
        for source in self.sources:
            found = np.asarray(values[source.name], np.float64)
            if self.scale is not Scale.RAW:
                found = zscore(found, moments[source.name])
            is_there = ~np.isnan(found)
            total += np.where(is_there, found, 0.0) * source.weight
            available += is_there * abs(source.weight)
        whole = sum(abs(source.weight) for source in self.sources)
        return np.where(available > 0, total * whole / np.where(available > 0, available, 1.0), np.nan)
