"""Requests that wait for a slot: suspects of a worker's death, long ones, and the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from swift_rlx.scheduler.requests import Job
from swift_rlx.scheduler.routing import Router, Worker


class Lines:
    """`send` gets each job that found a slot, with its worker; `give_up` those whose group is hopeless."""

    def __init__(
        self, router: Router, send: Callable[[Job, Worker], None], give_up: Callable[[Job], None]
    ) -> None:
        self._router = router
        self._send = send
        self._give_up = give_up
        self._suspects: deque[Job] = deque()
        self._long: deque[Job] = deque()
        self._others: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._suspects) + len(self._long) + len(self._others)

    def add(self, job: Job) -> None:
        """At the end of its line."""
        self._line(job).append(job)

    def add_first(self, job: Job) -> None:
        """At the head of its line: it had a slot before."""
        self._line(job).appendleft(job)

    def step(self) -> None:
        """Send what there is a slot for. On a worker that has shown nothing yet, a suspect comes after all others."""
        self._advance(self._suspects, proven=True)
        if self._suspects:
            self._router.set_aside(self._suspects[0].avoid)
        else:
            self._router.set_none_aside()
        self._advance(self._long)
        self._advance(self._others)
        self._advance(self._suspects)

    def _line(self, job: Job) -> deque[Job]:
        if job.load.is_suspect:
            return self._suspects
        return self._long if job.load.is_long else self._others

    def _advance(self, line: deque[Job], *, proven: bool = False) -> None:
        """A job that avoids the workers with room keeps its place, and holds up nobody behind it."""
        passed: list[Job] = []
        while line:
            if line[0].group.is_hopeless:
                self._give_up(line.popleft())
                continue
            if not self._router.has_room(line[0].load):
                break
            job = line.popleft()
            worker = self._router.reserve(job.load, job.avoid, proven=proven)
            if worker is None:
                passed.append(job)
            else:
                self._send(job, worker)
        line.extendleft(reversed(passed))
