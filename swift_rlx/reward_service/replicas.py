"""Which replica of a served reward is asked next, and which version is in use.

Invariants
- One version is in use at a time. It only changes to one that was not used before, and only when no replica is known to
  serve the old one: while replicas are replaced one by one, the old version is asked where it still is.
- A replica that failed rests, longer each time, and then is tried by one call at a time, where the others are busy; one
  that asks to be left alone rests for that long.

Thread-safe: rewards of one run may be asked from several event loops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swift_rlx.backends.remote_endpoint import Endpoint

RESTS_S = (0.2, 1.0, 3.0, 10.0, 30.0)
OTHER_VERSION_S = 1.0
"""How long a replica of another version is left alone; it may be started again with the right one."""
GONE_FAILURES = 2
"""Failures in a row after which a replica is not counted for the version that it had."""


@dataclass(eq=False)
class Replica:
    """`version`: what it said last; empty: not known."""

    endpoint: Endpoint
    version: str = ""
    inflight: int = 0
    failures: int = 0
    rests_until_s: float = 0.0


class Replicas:
    """`versions`: those that may be used, in order; none: any. `clock`: seconds."""

    def __init__(
        self, endpoints: Sequence[Endpoint], versions: Sequence[str], clock: Callable[[], float]
    ) -> None:
        self.all = [Replica(endpoint) for endpoint in endpoints]
        self.version = versions[0] if versions else ""
        self._versions = versions
        self._left: list[str] = []
        self._clock = clock
        self._lock = threading.Lock()

    def pick(self, version: str, *, is_late: bool = False) -> Replica | None:
        """The least busy one that may have this version (empty: any), and is awake; it has one call more now.

        `is_late`: there is no time to try whether one that failed is back.
        """
        with self._lock:
            now_s = self._clock()
            awake = [one for one in self.all if one.rests_until_s <= now_s and not (is_late and one.failures)]
            if not awake:
                return None
            fitting = [one for one in awake if version in ("", one.version) or not one.version]
            # The others after these: what they serve may have changed since they were asked.
            # One call at a time tries whether a replica that failed is back.
            chosen = min(
                fitting or awake,
                key=lambda one: (one.failures > 0 and one.inflight > 0, one.inflight, one.failures),
            )
            chosen.inflight += 1
            return chosen

    def know(self, versions: Sequence[str]) -> None:
        """What each replica has said that it serves; empty: it said nothing."""
        with self._lock:
            for replica, version in zip(self.all, versions, strict=True):
                replica.version = version

    def rest_s(self) -> float:
        """Until the next replica is awake."""
        with self._lock:
            return max(0.0, min(one.rests_until_s for one in self.all) - self._clock())

    def answered(self, replica: Replica, version: str) -> bool:
        """It has scored, by this version; whether it counted as gone."""
        with self._lock:
            was_gone = replica.failures >= GONE_FAILURES
            replica.inflight -= 1
            replica.failures, replica.rests_until_s, replica.version = 0, 0.0, version
            if not self.version:
                self.version = version
            return was_gone

    def serves_another(self, replica: Replica, version: str) -> bool:
        """It has refused, because it serves this version; whether it counted as gone."""
        with self._lock:
            was_gone = replica.failures >= GONE_FAILURES
            replica.inflight -= 1
            replica.failures, replica.version = 0, version
            replica.rests_until_s = self._clock() + OTHER_VERSION_S
            return was_gone

    def failed(self, replica: Replica) -> bool:
        """It gave no answer, or none that can be used; whether this is the failure from which it counts as gone."""
        with self._lock:
            replica.inflight -= 1
            rest_s = RESTS_S[min(replica.failures, len(RESTS_S) - 1)]
            replica.failures += 1
            replica.rests_until_s = self._clock() + rest_s
            return replica.failures == GONE_FAILURES

    def is_busy(self, replica: Replica, retry_after_s: float) -> None:
        """It is up, and wants to be left alone."""
        with self._lock:
            replica.inflight -= 1
            replica.rests_until_s = self._clock() + retry_after_s

    def released(self, replica: Replica) -> None:
        """The call was given up."""
        with self._lock:
            replica.inflight -= 1

    def change_version(self) -> tuple[str, str] | None:
        """Go on to the next version if no replica is known to have the one in use; old and new, None: no change."""
        with self._lock:
            for one in self.all:
                if one.failures < GONE_FAILURES and one.version in ("", self.version):
                    return None
            served = {one.version for one in self.all if one.failures == 0} - {"", self.version, *self._left}
            allowed = [one for one in (self._versions or sorted(served)) if one in served]
            if not allowed or not self.version:
                return None
            old, self.version = self.version, allowed[0]
            self._left.append(old)
            return old, self.version
