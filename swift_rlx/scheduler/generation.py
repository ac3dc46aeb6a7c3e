"""The generate stage: admits prompts, gives requests to workers, and books what comes back."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

from swift_rlx.backends.base import GenerationRequest
from swift_rlx.errors import BackendError, BackendRejected, BackendUnavailable, WorkerDied
from swift_rlx.scheduler.groups import OpenGroup
from swift_rlx.scheduler.prompts import completion_seed
from swift_rlx.scheduler.publishing import Publisher
from swift_rlx.scheduler.recovery import Recovery
from swift_rlx.scheduler.requests import Job, TimeLimit, abort_requests, attempt
from swift_rlx.scheduler.retry import RetryPolicy
from swift_rlx.scheduler.routing import Worker
from swift_rlx.scheduler.state import RunState
from swift_rlx.types import Completion, DropReason, Fate, FinishReason

LENGTH_WEIGHT = 0.01
"""Weight of the newest answer in the running mean of lengths, by which prompts without a hint are routed."""


class Generation:
    """Owns the requests: those that wait for a slot, and those in flight."""

    def __init__(self, state: RunState, recovery: Recovery, chance: random.Random) -> None:
        self.publisher: Publisher | None = None
        self._state = state
        self._recovery = recovery
        self._chance = chance
        self._retry = RetryPolicy(state.config.retries, state.config.request_timeout_s)
        self._waiting: tuple[deque[Job], deque[Job]] = (deque(), deque())  # long ones, others
        self._again: list[tuple[int, OpenGroup]] = []  # (optimizer step that has to be live, group)
        self._inflight: dict[str, tuple[Job, Worker]] = {}
        self._mean_tokens = float(state.config.sampling.max_tokens)

    def step(self) -> None:
        """Admit what there is room for, and send what there is a slot for."""
        state = self._state
        had_all = state.has_admitted_all
        while state.capacity.room() and (prompt := state.source.next()) is not None:
            self.admit(state.book.admit(prompt, state.capacity.admit()))
        if state.has_admitted_all and not had_all:
            state.events.train.set()
        for step, group in self._again:
            if step <= state.live.step:
                self.admit(group)
        self._again = [one for one in self._again if one[0] > state.live.step]
        for line in self._waiting:
            self._send(line)

    def admit(self, group: OpenGroup) -> None:
        """Put the requests of an open group in line."""
        config, prompt = self._state.config, group.prompt
        expected = prompt.expected_tokens
        tokens = len(prompt.token_ids) + (expected if expected is not None else int(self._mean_tokens))
        is_long = expected is not None and expected >= config.long_tokens
        line = self._waiting[0 if is_long else 1]
        line.extend(Job(group, member, tokens, is_long) for member in range(config.group_size))

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
        return sum(map(len, self._waiting))

    def _requeue(self, job: Job) -> None:
        self._waiting[0 if job.is_long else 1].appendleft(job)
        self._state.events.generate.set()

    def _send(self, line: deque[Job]) -> None:
        state = self._state
        while line:
            job = line[0]
            if job.group.is_hopeless:
                line.popleft()
                self._member_failed(job, "too few of the group are left")
                continue
            worker = state.router.reserve(job.tokens, job.is_long, job.avoid)
            if worker is None:
                return
            line.popleft()
            if job.group.start_step is None:
                job.group.start_step = worker.version.step
            job.mark = state.router.sent(worker)
            state.supervisor.spawn(self._run(job, worker))

    def _request(self, job: Job) -> GenerationRequest:
        config, group, prompt = self._state.config, job.group, job.group.prompt
        group.attempts[job.member] += 1
        number = f"{group.rounds}.{group.attempts[job.member]}"
        seed = completion_seed(config.seed, prompt, job.member)
        return GenerationRequest(
            request_id=f"{prompt.epoch}/{prompt.index}/{job.member}#{number}",
            prompt=prompt,
            member=job.member,
            sampling=replace(config.sampling, seed=seed),
            attempt=job.attempt,
            submit_s=self._state.clock.now(),
        )

    async def _run(self, job: Job, worker: Worker) -> None:
        """One attempt, from the slot that was reserved for it to its booking."""
        state, served = self._state, worker.version
        request = self._request(job)
        job.is_being_cut = False
        self._inflight[request.request_id] = (job, worker)
        try:
            limit = TimeLimit(
                worker.backend,
                request.request_id,
                state.clock,
                state.supervisor.spawn,
                state.config.abort_grace_s,
            )
            answer: Completion | BackendError
            answer = await attempt(worker.backend, request, limit, self._retry.limit_s(job.attempt))
            self._check(answer, worker, job)
            if answer.finish_reason is not FinishReason.ABORT:
                state.check_versions(answer, served)
        except BackendError as error:
            answer = error
        finally:
            del self._inflight[request.request_id]
            state.router.release(worker, job.tokens, job.is_long)
            if self.publisher is not None:
                self.publisher.released(worker)
            state.events.generate.set()
        if isinstance(answer, BackendError):
            self._failed(job, worker, answer)
        elif answer.finish_reason is FinishReason.ABORT:
            self._was_cut(job, answer.num_sampled)
        else:
            state.router.measured(worker, job.mark, answer.num_tokens, state.clock.now() - request.submit_s)
            self._answered(job, worker, answer)

    def _check(self, answer: Completion, worker: Worker, job: Job) -> None:
        if answer.finish_reason is FinishReason.ABORT:
            if not job.is_being_cut and not self._state.is_closing:
                raise BackendUnavailable(f"worker '{worker.name}' aborted an answer by itself").losing(
                    answer.num_sampled
                )
        elif (fault := answer.fault()) is not None:
            raise BackendRejected(f"worker '{worker.name}' answered with {fault}").losing(answer.num_sampled)

    def _answered(self, job: Job, worker: Worker, answer: Completion) -> None:
        state = self._state
        state.ledger.arrived(answer.num_sampled)
        state.router.succeeded(worker)
        self._recovery.succeeded()
        self._mean_tokens += LENGTH_WEIGHT * (answer.num_sampled - self._mean_tokens)
        state.book.complete(job.group, job.member, answer)
        self._assemble(job.group)

    def _was_cut(self, job: Job, tokens: int) -> None:
        state = self._state
        state.ledger.arrived(tokens)
        state.ledger.settle(Fate.CUT, tokens)
        job.was_cut = True
        if not state.is_closing:
            self._requeue(job)

    def _failed(self, job: Job, worker: Worker, error: BackendError) -> None:
        state = self._state
        state.ledger.arrived(error.lost_tokens)
        state.ledger.settle(Fate.FAILED, error.lost_tokens)
        state.failures[type(error).__name__] += 1
        if not isinstance(error, BackendRejected):
            self._recovery.failed(worker, error, is_dead=isinstance(error, WorkerDied))
        if state.is_closing:
            return
        wait_s = self._retry.wait_s(job.attempt, error, self._chance.random())
        if wait_s is None or job.group.is_hopeless:
            self._member_failed(job, str(error))
            return
        state.retries += 1
        job.attempt += 1
        job.avoid.add(worker.name)
        state.clock.call_later(wait_s, lambda: self._requeue(job))

    def _member_failed(self, job: Job, reason: str) -> None:
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
            state.drop(group, group.record(), DropReason.TOO_FEW_ANSWERS)
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
