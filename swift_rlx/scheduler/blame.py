"""Against which requests the death of a worker counts.

A prompt that kills its workers must end by its retries, and nobody else by it. With several requests on a worker
nobody knows which one it was: such a death uses up nobody's attempt. Who was on `DEATHS_OF_A_SUSPECT` workers that died
is a suspect, and is tried on a worker of its own (`routing.py`): should that die too, it is known who did it, and all
the deaths that it was at use up attempts. Once one of its group was given up for that, one such death is enough.

A request that gets further with each of its attempts will end whatever happens to its workers, so no death counts
against it; a suspect that gets further than ever before is none any more, and others may come beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swift_rlx.scheduler.requests import Job

DEATHS_OF_A_SUSPECT = 2


def judge(aboard: Sequence[Job], retries: int) -> None:
    """A worker died with these requests: say of each how many attempts that uses up, and who is a suspect now."""
    for job in aboard:
        job.blame = 0
        if job.has_progressed or job.is_away:
            continue
        job.deaths += 1
        if job.held.is_suspect:  # it was alone
            job.blame, job.deaths = 1 + retries if job.group.has_killed else job.deaths, 0
        elif job.deaths >= DEATHS_OF_A_SUSPECT:
            job.load = replace(job.load, is_suspect=True)
