"""Answers that are not finished: what is kept of them when an attempt fails, and what the next goes on behind.

    keep                 the next worker goes on behind the tokens of weights that are not newer than its own
    pin, drain, abort    it goes on only if its weights are those of the last token: an answer is of one version there

Every token that is told of is booked as in flight at once. What a worker does not go on behind is lost, and made again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from swift_rlx.backends.base import WeightUpdate
from swift_rlx.backends.progress import sampled_part, section, shared_tokens
from swift_rlx.scheduler.requests import Job
from swift_rlx.scheduler.routing import Worker
from swift_rlx.scheduler.state import RunState
from swift_rlx.types import Chunk, Completion, Fate, IntArray


def usable_tokens(steps: IntArray, worker: Worker, mode: WeightUpdate) -> int:
    """How many of the first tokens, of weights of these steps, the worker may go on behind."""
    if mode is WeightUpdate.KEEP:
        return int(np.searchsorted(steps, worker.version.step, side="right"))
    is_publishing = worker.pulse is not None and worker.pulse.is_publishing
    is_same = len(steps) > 0 and int(steps[-1]) == worker.version.step
    return len(steps) if is_same and not is_publishing else 0


class DraftBook:
    """Keeps the drafts of the jobs, and books their tokens."""

    def __init__(self, state: RunState, mode: WeightUpdate) -> None:
        self._state = state
        self._mode = mode

    def prefix(self, job: Job, worker: Worker) -> Chunk | None:
        """What the next attempt, on this worker, may go on behind; the rest of the draft is lost."""
        draft = job.draft.whole()
        usable = 0 if draft is None else usable_tokens(draft.policy_steps, worker, self._mode)
        self._state.tokens_are_made_again(job.group, self._cut(job, usable))
        job.kept = usable
        return job.draft.whole()

    def told(self, job: Job, chunk: Chunk, submit_s: float) -> None:
        """An attempt, submitted at that time, made these tokens."""
        before = job.draft.num_tokens
        lost = job.draft.add(chunk)
        if not before - lost:
            job.draft_submit_s = submit_s
        job.kept = min(job.kept, before - lost)
        self._state.book.drafted(job.group, job.draft.num_tokens - before)
        self._state.ledger.arrived(job.draft.num_tokens - (before - lost))
        self._state.tokens_are_made_again(job.group, lost)

    def take(self, job: Job, answer: Completion, submit_s: float) -> None:
        """The attempt ended with these tokens; they are the draft now, and all of them are booked."""
        whole, draft = sampled_part(answer), job.draft.whole()
        shared = 0 if draft is None else shared_tokens(draft, whole)
        again = max(job.kept - shared, 0)  # the worker began anew, and did not say so
        self._state.tokens_are_made_again(job.group, again)
        self._state.lose(job.group, Fate.FAILED, self._cut(job, shared) - again)
        job.kept -= again
        rest = section(whole, shared, whole.end)
        self.told(job, rest if draft is None else replace(rest, turns=draft.turns), submit_s)

    def finished(self, job: Job, answer: Completion) -> Completion:
        """The answer as it is handed on: one that goes on behind an earlier attempt began with that."""
        draft = job.draft.whole()
        if not job.kept or draft is None:
            return answer
        return replace(
            answer,
            submit_s=job.draft_submit_s,
            start_s=draft.start_s,
            first_token_s=draft.first_token_s,
        )

    def completed(self, job: Job) -> None:
        """The answer is whole: its tokens are its group's now."""
        self._state.book.drafted(job.group, -job.draft.num_tokens)

    def settle(self, job: Job, fate: Fate) -> None:
        """The draft is given up."""
        self._state.lose(job.group, fate, self._cut(job, 0))
        job.kept = job.furthest = 0

    def _cut(self, job: Job, keep: int) -> int:
        """Tokens that leave the draft behind the first `keep`."""
        cut = job.draft.cut(keep)
        self._state.book.drafted(job.group, -cut)
        return cut
