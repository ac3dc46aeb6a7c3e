"""Workers that fail: ejected, asked from time to time, given the current weights, and readmitted.

The run ends with the last error once no worker has been well for `outage_limit_s`, and at once when none of them will
be started any more. A worker is well again when it has answered a request, or makes tokens: many that cannot generate
say that they are well. The time does not count in which one is being started, which has a limit itself, or has nothing
to do. A readmitted worker is given the time of its first request; who fails at that too is not hoped for any more.
"""

from __future__ import annotations

import asyncio
import logging

from swift_rlx.errors import BackendError, BackendUnavailable, StalenessError, WorkerAbsent, WorkerLost
from swift_rlx.scheduler.outage import Outage
from swift_rlx.scheduler.publishing import give_weights
from swift_rlx.scheduler.requests import within
from swift_rlx.scheduler.routing import Worker, WorkerState
from swift_rlx.scheduler.state import RunState
from swift_rlx.types import PolicyVersion

HEALTH_LIMIT_S = 10.0
STARTING_S = 1.0
"""After how long a worker whose process is being started is asked again."""

logger = logging.getLogger("swift_rlx")


class Recovery:
    """Knows how long nothing has worked, and brings workers back."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._outage = Outage(state.clock, state.config.outage_limit_s, self._outage_is_over)
        self._last_error: BackendError | None = None
        self._lost: set[str] = set()
        state.router.on_idle_change = self._count

    async def begin(self) -> None:
        """Before the first request: one worker has to serve the weights of the start, the others may get them later.

        Raises `StalenessError` where one serves others and none serves these, and the first error where none answers.
        """
        version, workers = self._state.version, self._state.router.workers
        found = await asyncio.gather(*map(served_version, workers), return_exceptions=True)
        errors: dict[Worker, BackendError] = {}
        for worker, served in zip(workers, found, strict=True):
            if isinstance(served, BackendError):
                errors[worker] = served
            elif isinstance(served, BaseException):
                raise served
            elif served != version and version not in found:
                raise StalenessError(
                    f"worker '{worker.name}' serves weights {served}, but the run starts at {version};"
                    " load these into the worker first"
                )
            elif served != version:
                errors[worker] = BackendUnavailable(f"worker '{worker.name}' serves weights {served}")
        if len(errors) == len(workers):
            raise next(iter(errors.values()))
        for worker, error in errors.items():
            self.publish_failed(worker, error)

    def succeeded(self) -> None:
        """A worker gave an answer, or made tokens."""
        self._outage.end()

    def failed(self, worker: Worker, error: BackendError, is_dead: bool) -> None:
        """A request failed by the worker's fault."""
        if self._state.router.failed(worker, is_dead):
            self._ejected(worker, error, is_dead)
        self._note(error)

    def publish_failed(self, worker: Worker, error: BackendError) -> None:
        """The worker did not take weights; it may serve old ones, so it gets no request."""
        if self._state.router.eject(worker):
            self._ejected(worker, error, is_dead=isinstance(error, WorkerAbsent))
            self._note(error)

    def _ejected(self, worker: Worker, error: BackendError, is_dead: bool) -> None:
        logger.warning(f"worker '{worker.name}' gets no more requests until it is well again: {error}")
        if all(one.state is WorkerState.EJECTED for one in self._state.router.workers):
            self._state.away.run()
        wait_s = self._state.router.ejection_s(worker)
        if is_dead:  # a new process can be started at once, unless the last one was of no use either
            wait_s = STARTING_S if worker.ejections > 1 else 0.0
        self._state.supervisor.spawn(self._bring_back(worker, wait_s))

    def _note(self, error: BackendError) -> None:
        self._last_error = error
        self._count()
        router = self._state.router
        if self._outage.is_over and router.is_none_hopeful and not router.is_one_coming:
            self._end()

    def _count(self) -> None:
        """Have the outage counted while nothing works and nothing is about to."""
        router = self._state.router
        if not router.is_none_well:
            return
        if router.is_one_coming:
            self._outage.pause()
        else:
            self._outage.run()

    def _outage_is_over(self) -> None:
        router = self._state.router
        open_ones = [worker for worker in router.workers if worker.state is not WorkerState.EJECTED]
        if router.is_none_hopeful and not any(worker.inflight for worker in open_ones):
            self._end()  # else the end of the request that one of them is tried with decides

    def _end(self) -> None:
        seconds, error = self._outage.seconds, self._last_error
        self._fail(f"no rollout worker has answered for {seconds:.0f} s; the last error: {error}")

    def _fail(self, text: str) -> None:
        end = BackendUnavailable(text)
        end.__cause__ = self._last_error
        self._state.supervisor.fail(end)

    async def _bring_back(self, worker: Worker, wait_s: float) -> None:
        state, out_since_s = self._state, self._state.clock.now()
        while True:
            await state.clock.sleep(wait_s)
            try:
                await self._renew(worker)
            except WorkerLost as error:
                self._lose(worker, error)
                wait_s = state.router.again_s(worker)
            except WorkerAbsent:
                state.router.starting(worker)
                self._count()
                wait_s = STARTING_S
            except BackendError as error:
                state.router.is_still_ill(worker)
                self._note(error)
                wait_s = state.router.again_s(worker)
            else:
                break
        self._lost.discard(worker.name)
        out_s = state.clock.now() - out_since_s
        logger.warning(
            f"worker '{worker.name}' is back after {out_s:.0f} s and serves weights {worker.version}"
        )
        state.router.readmit(worker)
        state.away.pause()
        self._count()
        state.events.generate.set()

    def _lose(self, worker: Worker, error: WorkerLost) -> None:
        self._last_error = error
        self._state.router.is_still_ill(worker)
        if worker.name not in self._lost:
            logger.warning(str(error))
        self._lost.add(worker.name)
        if len(self._lost) == len(self._state.router.workers):
            self._fail(f"no rollout worker is left; the last error: {error}")
        else:
            self._note(error)

    async def _renew(self, worker: Worker) -> None:
        """Bring the worker to the version that the others serve, which may change meanwhile."""
        version = await served_version(worker)
        while version < (live := self._state.live):
            with self._state.using(live):
                await give_weights(worker, live, self._state.live_payload, self._state.config.publish_limit_s)
            if (version := await served_version(worker)) != live:
                raise StalenessError(
                    f"worker '{worker.name}' took weights {live}, but says that it serves {version}"
                )
        worker.version = version


async def served_version(worker: Worker) -> PolicyVersion:
    """What the worker says that it serves. Raises `BackendError` where it does not answer."""
    asking = worker.backend.health()
    return (await within(HEALTH_LIMIT_S, asking, f"worker '{worker.name}' to say how it is")).version
