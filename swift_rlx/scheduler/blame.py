"""Against which requests the death of a worker counts.

A prompt that kills its workers must end by its retries, and the other requests that were on them must not. Who was on
`DEATHS_OF_A_SUSPECT` workers that died is a suspect, and a worker has at most one of them (`routing.py`): when it dies,
that one has used up an attempt and nobody else. A request that gets further with each of its attempts will end whatever
happens to its workers, so no death counts against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from swift_rlx.scheduler.requests import Job

DEATHS_OF_A_SUSPECT = 2


def judge(aboard: Sequence[Job]) -> None:
    """A worker died with these requests: say of each whether that uses up an attempt, and who is a suspect now."""
    candidates = [job for job in aboard if not (job.has_progressed or job.is_away)]
    blamed = [job for job in candidates if job.load.is_suspect] or candidates
    for job in aboard:
        job.is_blamed = any(job is other for other in blamed)
    for job in candidates:
        job.deaths += 1
        job.load = replace(job.load, is_suspect=job.deaths >= DEATHS_OF_A_SUSPECT)
