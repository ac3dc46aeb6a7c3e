"""How long nothing has worked."""

from __future__ import annotations

from collections.abc import Callable

from swift_rlx.clock import Clock, Timer


class Stopwatch:
    """Seconds in which it ran."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counted_s = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """So far."""
        return self._counted_s + (0.0 if self._since is None else self._clock.now() - self._since)

    def run(self) -> None:
        """Count from now on."""
        if self._since is None:
            self._since = self._clock.now()

    def pause(self) -> None:
        """Count no more."""
        self._counted_s, self._since = self.seconds, None


class Outage:
    """Counts the seconds of an outage, without those in which it is paused.

    `on_over` is called when they reach `limit_s`, at that moment and not at the next failure.
    """

    def __init__(self, clock: Clock, limit_s: float, on_over: Callable[[], None]) -> None:
        self.is_over = False
        """Whether the limit was reached."""
        self._clock = clock
        self._limit_s = limit_s
        self._on_over = on_over
        self._watch = Stopwatch(clock)
        self._timer: Timer | None = None

    @property
    def seconds(self) -> float:
        """Counted so far."""
        return self._watch.seconds

    def run(self) -> None:
        """Nothing works: count."""
        if self._timer is None:
            self._watch.run()
            self._timer = self._clock.call_later(max(self._limit_s - self.seconds, 0.0), self._reach)

    def pause(self) -> None:
        """Somebody is about to come back: what was counted stays."""
        self._watch.pause()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Something works."""
        self.pause()
        self._watch, self.is_over = Stopwatch(self._clock), False

    def _reach(self) -> None:
        self.is_over = True
        self._on_over()
