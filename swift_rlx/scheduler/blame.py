"""Against which requests the death of a worker counts.

A prompt that kills its workers must end by its retries, and nobody else by it. With several requests on a worker
nobody knows which one it was: such a death uses up nobody's attempt. Who was on `DEATHS_OF_A_SUSPECT` workers that died
is a suspect, and so are the others of its group that wait. A suspect goes to a worker on which all others make tokens
already; after one death more it has a worker to itself (`routing.py`). Should a worker die that a
suspect had to itself, it is known who did it, and all the deaths that it was at use up attempts. Once one of its group
was given up for that, one such death is enough.

A request that gets further with each of its attempts will end whatever happens to its workers, so no death counts
against it; a suspect that gets further than ever before is none any more.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from swift_rlx.scheduler.requests import Job

DEATHS_OF_A_SUSPECT = 2

logger = logging.getLogger("swift_rlx")


def judge(aboard: Sequence[Job], retries: int) -> None:
    """A worker died with these requests: say of each how many attempts that uses up, and who is a suspect now."""
    for job in aboard:
        job.blame = 0
        if job.has_progressed or job.is_away:
            continue
        job.deaths += 1
        job.group.has_witnesses = True
        if job.held.is_suspect and len(aboard) == 1:
            job.blame, job.deaths = 1 + retries if job.group.has_killed else job.deaths, 0
        elif job.deaths >= DEATHS_OF_A_SUSPECT:
            job.load = replace(job.load, is_suspect=True, is_alone=job.held.is_suspect)
            job.group.is_suspected = True
    if num_suspects := sum(job.load.is_suspect and not job.held.is_suspect for job in aboard):
        logger.warning(
            f"{num_suspects} answer(s) were on {DEATHS_OF_A_SUSPECT} workers that died, and got no further: they are"
            " tried one at a time, until it is known which of them kills workers"
        )


def suspect_with_its_group(job: Job) -> bool:
    """Make it a suspect where another one of its group is one; whether it is now."""
    if job.group.is_suspected:
        job.load = replace(job.load, is_suspect=True)
    return job.load.is_suspect


def clear(job: Job) -> None:
    """It got further than ever before."""
    job.load = replace(job.load, is_suspect=False, is_alone=False)
    job.deaths, job.group.is_suspected = 0, False
