"""Versions of rewards while they are used: a change is noticed and handled, and no batch has two versions of one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from enum import Enum

from swift_rlx.errors import RewardError

logger = logging.getLogger(__name__)


class VersionChange(Enum):
    """What a change of a reward's version does; its statistics begin anew in any case. `--reward_version_change`."""

    STOP = "stop"
    """The run ends."""
    RESCORE = "rescore"
    """Answers that the version before scored are scored again."""
    RESTART = "restart"
    """They train as they are, unless an answer of the version after trains with them or has before."""


class VersionWatch:
    """Versions by reward, in the order in which they were seen. Thread-safe: its calls change one thing each.

    `before`: what an earlier start of the run scored with.
    """

    def __init__(self, choice: VersionChange, before: Mapping[str, str] | None = None) -> None:
        self.choice = choice
        self._seen: dict[str, list[str]] = {name: [version] for name, version in (before or {}).items()}
        self._trained: dict[str, int] = {}

    def see(self, name: str, version: str) -> bool:
        """A reward has scored, or is about to; whether its version is new and not its first.

        Raises RewardError where that ends the run.
        """
        seen = self._seen.setdefault(name, [])
        if version in seen:
            return False
        seen.append(version)
        if len(seen) == 1:
            return False
        if self.choice is VersionChange.STOP:
            raise RewardError(
                f"the reward {name!r} has the version {version!r} now, and scored with {seen[-2]!r} before: the rewards"
                " of both are not to be mixed; bring the version before back, or choose --reward_version_change rescore"
                " (answers that wait are scored again) or restart (those beside new ones are left out)"
            )
        logger.warning(
            f"the reward {name} has the version {version!r} now, and scored with {seen[-2]!r} before"
            f" (--reward_version_change {self.choice.value})"
        )
        return True

    def newest(self, name: str) -> str | None:
        """The version that came last; None where the reward has not scored yet."""
        seen = self._seen.get(name)
        return seen[-1] if seen else None

    def target(self, versions: Mapping[str, Iterable[str]]) -> dict[str, str]:
        """The one version of each reward that a batch is to have, which holds these."""
        return {name: self._target(name, list(found)) for name, found in versions.items()}

    def trained(self, versions: Mapping[str, str]) -> None:
        """A batch of these versions trains."""
        for name, version in versions.items():
            self._trained[name] = max(self._place(name, version), self._trained.get(name, 0))

    def _target(self, name: str, found: list[str]) -> str:
        places = [self._place(name, version) for version in found]
        if self.choice is VersionChange.RESCORE:
            return self._seen[name][-1]
        return self._seen[name][max([*places, self._trained.get(name, 0)])]

    def _place(self, name: str, version: str) -> int:
        """In the order of versions; one that nobody saw is older than all."""
        seen = self._seen.setdefault(name, [])
        if version not in seen:
            seen.insert(0, version)
            if name in self._trained:
                self._trained[name] += 1
        return seen.index(version)
