"""The generate stage: admits prompts, gives requests to workers, and books what comes back."""

from __future__ import annotations

import random
from dataclasses import replace

from swift_rlx.backends.base import GenerationRequest
from swift_rlx.errors import (
    BackendError,
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
    StalenessError,
    WorkerAbsent,
    WorkerDied,
)
from swift_rlx.scheduler.blame import clear, judge
from swift_rlx.scheduler.drafts import DraftBook
from swift_rlx.scheduler.groups import OpenGroup
from swift_rlx.scheduler.lines import Lines
from swift_rlx.scheduler.prompts import completion_seed
from swift_rlx.scheduler.publishing import Publisher
from swift_rlx.scheduler.recovery import Recovery
from swift_rlx.scheduler.requests import Job, abort_requests, attempt
from swift_rlx.scheduler.retry import BUDGET_WAIT_S, RetryBudget, RetryPolicy
from swift_rlx.scheduler.routing import Load, Worker
from swift_rlx.scheduler.state import RunState
from swift_rlx.scheduler.time_limits import Limits, TimeLimit
from swift_rlx.types import Chunk, Completion, DropReason, Fate, FinishReason

LENGTH_WEIGHT = 0.01
"""Weight of the newest answer in the running mean of lengths, by which prompts without a hint are routed."""


class Generation:
    """Owns the requests: those that wait for a slot, and those in flight."""

    def __init__(self, state: RunState, recovery: Recovery, drafts: DraftBook, chance: random.Random) -> None:
        config = state.config
        self.publisher: Publisher | None = None
        self._state = state
        self._recovery = recovery
        self._drafts = drafts
        self._chance = chance
        self._retry = RetryPolicy(
            config.retries,
            Limits(
                config.request_timeout_s,
                config.first_token_limit_s,
                config.token_gap_limit_s,
                config.abort_grace_s,
            ),
        )
        self._budget = RetryBudget()
        self._lines = Lines(state.router, self._send, self._give_up)
        self._again: list[tuple[int, OpenGroup]] = []  # (optimizer step that has to be live, group)
        self._inflight: dict[str, tuple[Job, Worker]] = {}
        self._mean_tokens = float(config.sampling_of(0).max_tokens)

    def step(self) -> None:
        """Admit what there is room for, and send what there is a slot for."""
        state = self._state
        had_all = state.has_admitted_all
        while state.capacity.room() and (prompt := state.source.next()) is not None:
            self.admit(state.admit(prompt))
        if state.has_admitted_all and not had_all:
            state.events.train.set()
        for step, group in self._again:
            if step <= state.live.step:
                self.admit(group)
        self._again = [one for one in self._again if one[0] > state.live.step]
        self._lines.step()

    def admit(self, group: OpenGroup) -> None:
        """Put the requests of an open group in line."""
        config, prompt = self._state.config, group.prompt
        expected = prompt.expected_tokens
        tokens = len(prompt.token_ids) + (expected if expected is not None else int(self._mean_tokens))
        load = Load(tokens, is_long=expected is not None and expected >= config.long_tokens)
        for member in range(config.group_size):
            self._lines.add(Job(group, member, load))

    def admit_at(self, group: OpenGroup, step: int) -> None:
        """`admit` it once the weights of that optimizer step are live."""
        if step <= self._state.live.step:
            self.admit(group)
        else:
            self._again.append((step, group))

    def regenerate(self, group: OpenGroup) -> None:
        """All of a group was over age: make it again, once the trainer's weights of now are live."""
        self._state.book.restart(group)
        self._again.append((self._state.version.step, group))
        self._state.events.generate.set()

    def cut(self, worker: Worker) -> None:
        """End the worker's answers that were not cut before."""
        self._abort([job for job, where in self._inflight.values() if where is worker and not job.was_cut])

    def cut_all(self) -> None:
        """End everything in flight: the run ends."""
        self._abort([job for job, _ in self._inflight.values()])

    @property
    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self._lines)

    def _requeue(self, job: Job) -> None:
        self._lines.add_first(job)
        self._state.events.generate.set()

    def _give_up(self, job: Job) -> None:
        self._member_failed(job, "too few of the group are left")

    def _send(self, job: Job, worker: Worker) -> None:
        state = self._state
        if job.group.start_step is None:
            job.group.start_step = worker.version.step
        if not job.group.attempts[job.member]:
            self._budget.sent(state.clock.now())
        job.mark = state.router.sent(worker)
        state.supervisor.spawn(self._run(job, worker))

    def _request(self, job: Job, worker: Worker) -> GenerationRequest:
        config, group, prompt = self._state.config, job.group, job.group.prompt
        group.attempts[job.member] += 1
        number = f"{group.rounds}.{group.attempts[job.member]}"
        seed = completion_seed(config.seed, prompt, job.member)
        return GenerationRequest(
            request_id=f"{prompt.epoch}/{prompt.index}/{job.member}#{number}",
            prompt=prompt,
            member=job.member,
            sampling=replace(config.sampling_of(job.member), seed=seed),
            attempt=group.attempts[job.member],
            submit_s=self._state.clock.now(),
            prefix=self._drafts.prefix(job, worker),
            is_suspect=job.load.is_suspect,
        )

    async def _run(self, job: Job, worker: Worker) -> None:
        """One attempt, from the slot that was reserved for it to its booking."""
        state = self._state
        job.held, job.blame = job.load, None
        job.is_being_cut = job.is_away = False
        job.is_silent = True
        request = self._request(job, worker)
        self._inflight[request.request_id] = (job, worker)
        try:
            answer: Completion | BackendError = await self._answer(job, worker, request)
        except BackendError as error:
            answer = error
        finally:
            del self._inflight[request.request_id]
            state.router.release(worker, job.held, is_silent=job.is_silent)
            if self.publisher is not None:
                self.publisher.released(worker)
            state.events.generate.set()
        if isinstance(answer, BackendError):
            self._failed(job, worker, answer)
        elif answer.finish_reason is FinishReason.ABORT:
            self._was_cut(job)
        else:
            made = answer.num_sampled - job.kept
            state.router.measured(worker, job.mark, made, state.clock.now() - request.submit_s)
            self._answered(job, worker, answer)

    async def _answer(self, job: Job, worker: Worker, request: GenerationRequest) -> Completion:
        """What the worker answers, within the limits of time, checked and booked. Raises `BackendError`."""
        state, served = self._state, worker.version

        def abort() -> None:
            state.supervisor.spawn(abort_requests(worker.backend, (request.request_id,)))

        def told(chunk: Chunk) -> None:
            if request.request_id not in self._inflight:
                return  # the attempt was given up
            try:
                state.check_versions(worker.name, chunk.policy_steps, served, chunk.incarnation)
            except StalenessError as error:
                state.supervisor.fail(error)
                return
            self._told(job, worker, chunk, request.submit_s)
            limit.told(job.is_away)

        limits = self._retry.limits_of(job.timeouts)
        limit = TimeLimit(worker.name, request.request_id, state.clock, limits, abort)
        limit.start(worker.pulse)
        answer = await attempt(worker.backend, request, limit, told)
        is_cut = answer.finish_reason is FinishReason.ABORT
        fault = answer.fault()
        if fault is not None and not (is_cut and not answer.num_tokens):
            made = max(answer.num_sampled - job.kept, 0)
            raise BackendRejected(f"worker '{worker.name}' answered with {fault}").losing(made)
        self._drafts.take(job, answer, request.submit_s)
        if is_cut and not job.is_being_cut and not state.is_closing:
            if limit.reason is not None:
                raise BackendTimeout(limit.reason)
            raise BackendUnavailable(f"worker '{worker.name}' aborted an answer by itself")
        if not is_cut:
            new_steps = answer.sampled_steps[job.kept :]
            state.check_versions(worker.name, new_steps, served, answer.incarnation)
        return self._drafts.finished(job, answer)

    def _told(self, job: Job, worker: Worker, chunk: Chunk, submit_s: float) -> None:
        self._drafts.told(job, chunk, submit_s)
        job.is_away = bool(chunk.turns) and chunk.turns[-1].finish_reason is not None
        router, has_room = self._state.router, False
        if chunk.num_tokens:
            self._recovery.succeeded()
            has_room = router.told(worker, is_first=job.is_silent)
            job.is_silent = False
        if job.held.is_suspect and job.has_progressed:
            router.cleared(worker)
            clear(job)
            job.held, has_room = job.load, True
        if has_room:
            self._state.events.generate.set()

    def _answered(self, job: Job, worker: Worker, answer: Completion) -> None:
        state = self._state
        state.router.succeeded(worker)
        self._recovery.succeeded()
        self._mean_tokens += LENGTH_WEIGHT * (answer.num_sampled - self._mean_tokens)
        self._drafts.completed(job)
        state.book.complete(job.group, job.member, answer)
        self._assemble(job.group)

    def _was_cut(self, job: Job) -> None:
        self._drafts.settle(job, Fate.CUT)
        job.was_cut = True
        if not self._state.is_closing:
            self._requeue(job)

    def _failed(self, job: Job, worker: Worker, error: BackendError) -> None:
        state = self._state
        never_told = max(error.lost_tokens - (job.draft.num_tokens - job.kept), 0)
        state.ledger.arrived(never_told)
        state.attempt_failed(error)
        counts = self._counts(job, worker, error)
        job.furthest = max(job.furthest, job.draft.num_tokens)
        is_dead = isinstance(error, (WorkerDied, WorkerAbsent))
        if not isinstance(error, BackendRejected):
            self._recovery.failed(worker, error, is_dead)
        failed = job.attempt + counts - 1
        wait_s = self._retry.wait_s(failed, error, self._chance.random()) if counts else 0.0
        if state.is_closing or wait_s is None or job.group.is_hopeless:
            job.group.has_killed |= wait_s is None and bool(job.blame)
            state.lose(job.group, Fate.FAILED, never_told)
            if not state.is_closing:
                self._member_failed(job, str(error))
            return
        state.tokens_are_made_again(job.group, never_told)
        state.retries += 1
        job.attempt += counts
        job.timeouts += isinstance(error, BackendTimeout)
        job.avoid.add(worker.name)
        state.clock.call_later(wait_s, lambda: self._try_again(job, is_free=is_dead))

    def _counts(self, job: Job, worker: Worker, error: BackendError) -> int:
        """How many of the request's attempts the failure uses up."""
        if isinstance(error, WorkerAbsent):
            return 0
        if not isinstance(error, WorkerDied):
            return 1
        if job.blame is None:
            aboard = [job, *(other for other, where in self._inflight.values() if where is worker)]
            judge(aboard, self._state.config.retries)
        return job.blame or 0

    def _try_again(self, job: Job, *, is_free: bool) -> None:
        state = self._state
        if is_free or self._budget.allows_retry(state.clock.now(), state.router.slots):
            self._requeue(job)
        else:
            state.clock.call_later(BUDGET_WAIT_S, lambda: self._try_again(job, is_free=False))

    def _member_failed(self, job: Job, reason: str) -> None:
        self._drafts.settle(job, Fate.FAILED)
        self._state.book.fail(job.group, job.member, reason)
        if job.group.is_hopeless:
            self._abort([other for other, _ in self._inflight.values() if other.group is job.group])
        self._assemble(job.group)

    def _assemble(self, group: OpenGroup) -> None:
        """Hand a group on whose members have all ended."""
        state = self._state
        if not group.has_ended_generating:
            return
        if group.is_hopeless:
            first_failure = next(iter(group.failed.values()))
            state.drop(group, group.record(), DropReason.TOO_FEW_ANSWERS, first_failure)
            return
        state.book.scoring(group)
        state.to_score.append(group)
        state.events.score.set()

    def _abort(self, jobs: list[Job]) -> None:
        ids: dict[Worker, list[str]] = {}
        chosen = set(map(id, jobs))
        for request_id, (job, worker) in self._inflight.items():
            if id(job) in chosen:
                job.is_being_cut = True
                ids.setdefault(worker, []).append(request_id)
        for worker, requests in ids.items():
            self._state.supervisor.spawn(abort_requests(worker.backend, tuple(requests)))
