"""Requests that wait for a slot: suspects of a worker's death, witnesses of one, long ones, and the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from swift_rlx.scheduler.blame import suspect_with_its_group
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
        self._witnesses: deque[Job] = deque()
        self._long: deque[Job] = deque()
        self._others: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._suspects) + len(self._witnesses) + len(self._long) + len(self._others)

    def add(self, job: Job) -> None:
        """At the end of its line."""
        self._line(job).append(job)

    def add_first(self, job: Job) -> None:
        """At the head of its line: it had a slot before."""
        self._line(job).appendleft(job)

    def step(self) -> None:
        """Send what there is a slot for.

        On a worker that has shown nothing yet, prompts that were on one that died come after all others: should one of
        them have killed it, the next worker gives an answer first.
        """
        if self._router.is_one_unproven:
            for line in (self._long, self._others):
                self._witnesses.extend(_taken(line, lambda job: job.group.has_witnesses))
        self._suspects.extend(_taken(self._witnesses, suspect_with_its_group))
        self._advance(self._suspects, proven=True)
        if self._suspects:
            self._router.set_aside(self._suspects[0].avoid)
        else:
            self._router.set_none_aside()
        self._advance(self._witnesses, proven=True)
        self._advance(self._long)
        self._advance(self._others)
        self._advance(self._witnesses)
        self._advance(self._suspects)

    def _line(self, job: Job) -> deque[Job]:
        if job.load.is_suspect:
            return self._suspects
        if job.group.has_witnesses:
            return self._witnesses
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


def _taken(line: deque[Job], is_wanted: Callable[[Job], bool]) -> list[Job]:
    """Those that are wanted; the others stay in line."""
    taken: list[Job] = []
    left: list[Job] = []
    for job in line:
        (taken if is_wanted(job) else left).append(job)
    if taken:
        line.clear()
        line.extend(left)
    return taken
