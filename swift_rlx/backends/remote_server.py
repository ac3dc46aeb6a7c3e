"""A running server of vLLM or SGLang as a rollout backend: asked over HTTP, in the trainer's own asyncio loop.

start      which kind it is, what it can do, what its log-probs mean (`remote_probe.py`)
publish    files that both machines see; then a fixed text has to come out as the trainer finds it
           (`remote_weights.py`)
generate   one request, one answer, told of as it comes (`remote_requests.py`); `remote_answer.py` checks it
health     whether it still serves what it was given: a server that was started again does not
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Collection

import numpy as np

from swift_rlx.backends.base import Capabilities, GenerationRequest, Health
from swift_rlx.backends.progress import OnProgress, unwatched
from swift_rlx.backends.remote_answer import Labels
from swift_rlx.backends.remote_dialect import Dialect, ServerFacts, ServerNeeds, Standing
from swift_rlx.backends.remote_endpoint import ApiKey, Endpoint
from swift_rlx.backends.remote_gate import Gate, InflightLimits
from swift_rlx.backends.remote_http import Call, HttpClient, may_have_ended
from swift_rlx.backends.remote_probe import identify
from swift_rlx.backends.remote_requests import Decode, RemoteRequests, Server
from swift_rlx.backends.remote_silence import ENGINE_SILENCE_S, HTTP_SILENCE_S, Question, SilenceWatch
from swift_rlx.backends.remote_weights import RemoteWeights
from swift_rlx.backends.weights import WeightFiles, WeightKind
from swift_rlx.clock import Clock, LoopClock
from swift_rlx.errors import (
    BackendError,
    BackendUnavailable,
    BackendUnfit,
    WeightsLost,
    WorkerAbsent,
    WorkerDied,
)
from swift_rlx.types import Completion, FloatArray, IntArray, PolicyVersion

logger = logging.getLogger("swift_rlx")

NOT_OURS = PolicyVersion(-1, 0)
"""What `health` says of a server that does not serve weights of this run."""
CLOSE_S = 2.0
HEALTH = Call("GET", "/health")
ENGINE_ENDED = 503
"""What both kinds of servers answer to `HEALTH` when their engine has ended, some time before they end themselves."""
GONE_S = 1.0
"""How long a server may take to answer after a connection was cut; one that takes longer is there."""


class RemoteServer:
    """An `Engine`. All calls come from one asyncio loop. `needs`: of the run; `limits`: of what is on its way.

    `decode`: token ids as text; without it no answer with stop strings goes on behind another one. `facts`: what the
    server turned out to be.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        needs: ServerNeeds,
        *,
        key: ApiKey | None = None,
        limits: InflightLimits | None = None,
        clock: Clock | None = None,
        decode: Decode | None = None,
    ) -> None:
        is_adapter = needs.weights is WeightKind.ADAPTER
        self.name = endpoint.url
        self.endpoint = endpoint
        self.capabilities = Capabilities(keep=needs.keeps and not is_adapter, pin=is_adapter, streams=True)
        self.facts: ServerFacts | None = None
        self._needs = needs
        client = self._client = HttpClient(endpoint, key)
        self._dialect: Dialect | None = None
        self._publishing = asyncio.Lock()
        clock, labels = clock or LoopClock(), Labels(secrets.token_hex(4))
        gate = self._gate = Gate(self.name, limits or InflightLimits(), clock)
        self.weights = RemoteWeights(client, needs, labels)
        self._requests = RemoteRequests(
            Server(client, gate, self.weights, labels, self._publishing, needs.vocabulary, clock, decode)
        )
        self._watch = SilenceWatch(
            (
                Question(self._ask_http, HTTP_SILENCE_S, self.name),
                Question(self._ask_engine, ENGINE_SILENCE_S, f"the engine of {self.name}"),
            ),
            is_needed=lambda: len(self._requests) > 0,
            is_busy=self._publishing.locked,
            on_silence=self._requests.fail,
        )
        self._is_closed = False

    async def start(self) -> None:
        """Find out what the server is. Raises `BackendUnfit` where it lacks something, with the remedy."""
        self._check_open()
        self._dialect = None
        dialect, facts = await identify(self._client, self._needs.probe_ids)
        if (fault := facts.fault(self.endpoint, self._needs)) is not None:
            raise BackendUnfit(fault)
        self._dialect, self.facts = dialect, facts

    async def generate(self, request: GenerationRequest, on_progress: OnProgress = unwatched) -> Completion:
        """As `Backend.generate`.

        Raises `WorkerAbsent` where nobody listens, `WorkerDied` where nobody does any more, and `WeightsLost`.
        """
        dialect, served = self._serving()
        max_model_len = None if self.facts is None else self.facts.max_model_len
        self._watch.begin()
        try:
            return await self._requests.answer(request, on_progress, dialect, served, max_model_len)
        except (WeightsLost, WorkerAbsent):
            self._dialect = self.weights.version = None  # it is another one, or will be when it comes back
            raise
        except BackendUnavailable as error:
            if not (may_have_ended(error) and await self._is_gone()):
                raise
            self._dialect = self.weights.version = None
            raise WorkerDied(f"{self.name} has ended in the middle of an answer: {error}").losing(
                error.lost_tokens
            ) from error

    async def abort(self, request_ids: Collection[str]) -> None:
        """As `Backend.abort`. Returns when they have ended, or after some tries."""
        await self._requests.abort(request_ids, self._dialect)

    async def publish(self, version: PolicyVersion, payload: object) -> None:
        """As `Backend.publish`, and shown by the probe. `payload`: `WeightFiles` in a directory that the server sees.

        Raises what `RemoteWeights.publish` does.
        """
        if not isinstance(payload, WeightFiles) or payload.kind is not self._needs.weights:
            raise BackendError(
                f"{self.name} takes {self._needs.weights.value} WeightFiles, and was given {payload!r}"
            )
        async with self._publishing:
            dialect = self._known()
            try:
                await self.weights.publish(dialect, version, payload)
                await self.weights.drop(dialect, {version, *self._requests.versions})
            except WorkerAbsent as error:
                raise BackendUnavailable(str(error)) from error

    async def health(self) -> Health:
        """As `Backend.health`. A server that may be another one by now is asked all that `start` asks.

        Where nobody listens that is `BackendUnavailable`: nobody here knows whether the server is being started.
        """
        try:
            return await self._health()
        except WorkerAbsent as error:
            raise BackendUnavailable(str(error)) from error

    async def _health(self) -> Health:
        self._check_open()
        if self._gate.closed_s:
            raise BackendUnavailable(f"{self.name} wants to be left alone for {self._gate.closed_s:.1f} s")
        version, dialect = self.weights.version, self._dialect
        if version is not None and dialect is not None:
            standing = await self.weights.standing(dialect, version)
            if standing is not Standing.LOST:
                return Health(version if standing is Standing.SERVED else NOT_OURS)
        self.weights.version = None
        await self.start()
        return Health(NOT_OURS)

    async def logprobs(self, token_ids: IntArray) -> FloatArray:
        """As `Engine.logprobs`."""
        dialect, version = self._serving()
        places = np.arange(1, len(token_ids), dtype=np.int32)
        return await self.weights.scores(dialect, np.asarray(token_ids), places, version)

    async def close(self) -> None:
        """End answers in flight and forget our adapters there; the server goes on. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self._watch.close()
        try:
            await asyncio.wait_for(self._leave(), CLOSE_S)
        except (asyncio.TimeoutError, TimeoutError, BackendError):
            logger.info(f"{self.name} was left without a word, because it does not answer")
        await self._client.close()

    async def _is_gone(self) -> bool:
        """Whether nobody listens any more, or says that its engine has ended; asked at once, so that no further request
        is sent to find out.
        """
        try:
            reply = await asyncio.wait_for(self._client.ask(HEALTH), GONE_S)
        except WorkerAbsent:
            return True
        except (BackendError, asyncio.TimeoutError, TimeoutError):
            return False
        return reply.status == ENGINE_ENDED

    async def _ask_http(self) -> None:
        await self._client.ask(HEALTH)

    async def _ask_engine(self) -> None:
        if self._dialect is not None and self.weights.version is not None:
            await self.weights.standing(self._dialect, self.weights.version)

    def _serving(self) -> tuple[Dialect, PolicyVersion]:
        dialect, version = self._known(), self.weights.version
        if version is None:
            raise BackendUnavailable(
                f"{self.name} serves no weights of this run yet: publish some to it first"
            )
        return dialect, version

    def _known(self) -> Dialect:
        self._check_open()
        if self._dialect is None:
            raise BackendUnavailable(
                f"{self.name} was not started, or is another one by now: await its `start`"
            )
        return self._dialect

    def _check_open(self) -> None:
        if self._is_closed:
            raise BackendUnavailable(f"the connection to {self.name} is closed")

    async def _leave(self) -> None:
        await self._requests.abort_all(self._dialect)
        if self._dialect is not None:
            await self.weights.drop(self._dialect, ())
