"""A running server of vLLM or SGLang as a rollout backend: asked over HTTP, in the trainer's own asyncio loop.

start      which kind it is, what it can do, what its log-probs mean (`remote_probe.py`)
publish    files that both machines see; then a fixed text has to come out as the trainer finds it
           (`remote_weights.py`)
generate   one request, one answer (`remote_answer.py` checks it)
health     whether it still serves what it was given: a server that was started again does not
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from swift_rlx.backends.base import Capabilities, GenerationRequest, Health
from swift_rlx.backends.progress import OnProgress, unwatched
from swift_rlx.backends.remote_answer import Expected, Labels, NoAnswer, Times, WireAnswer, completion
from swift_rlx.backends.remote_dialect import Dialect, Generation, ServerFacts, ServerNeeds, Standing
from swift_rlx.backends.remote_endpoint import ApiKey, Endpoint
from swift_rlx.backends.remote_flight import (
    ENGINE_SILENCE_S,
    HTTP_SILENCE_S,
    Flight,
    Question,
    SilenceWatch,
)
from swift_rlx.backends.remote_gate import Gate, InflightLimits
from swift_rlx.backends.remote_http import Call, HttpClient, Reply
from swift_rlx.backends.remote_probe import identify
from swift_rlx.backends.remote_weights import RemoteWeights
from swift_rlx.backends.weights import WeightFiles, WeightKind
from swift_rlx.clock import Clock, LoopClock
from swift_rlx.errors import (
    BackendError,
    BackendRejected,
    BackendUnavailable,
    BackendUnfit,
    WeightsLost,
    WorkerAbsent,
)
from swift_rlx.types import Completion, FinishReason, FloatArray, IntArray, PolicyVersion

logger = logging.getLogger("swift_rlx")

NOT_OURS = PolicyVersion(-1, 0)
"""What `health` says of a server that does not serve weights of this run."""
ABORT_TRIES, ABORT_WAIT_S = 8, 0.5
"""An abort that comes before the server knows the request is lost, so it is said again."""
CLOSE_S = 2.0


class RemoteServer:
    """An `Engine`. All calls come from one asyncio loop. `needs`: of the run; `limits`: of what is on its way.

    `facts`: what the server turned out to be.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        needs: ServerNeeds,
        *,
        key: ApiKey | None = None,
        limits: InflightLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        is_adapter = needs.weights is WeightKind.ADAPTER
        self.name = endpoint.url
        self.endpoint = endpoint
        self.capabilities = Capabilities(keep=needs.keeps and not is_adapter, pin=is_adapter)
        self.facts: ServerFacts | None = None
        self._needs = needs
        self._clock = clock or LoopClock()
        self._client = HttpClient(endpoint, key)
        self._gate = Gate(self.name, limits or InflightLimits(), self._clock)
        self._labels = Labels(secrets.token_hex(4))
        self.weights = RemoteWeights(self._client, needs, self._labels)
        self._numbers = itertools.count()
        self._dialect: Dialect | None = None
        self._flights: dict[str, Flight] = {}
        self._publishing = asyncio.Lock()
        self._watch = SilenceWatch(
            (
                Question(self._ask_http, HTTP_SILENCE_S, self.name),
                Question(self._ask_engine, ENGINE_SILENCE_S, f"the engine of {self.name}"),
            ),
            is_needed=lambda: bool(self._flights),
            is_busy=self._publishing.locked,
            on_silence=self._is_silent,
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
        """As `Backend.generate`, from the beginning, and told of at its end alone.

        Raises `WorkerAbsent` where nobody listens, and `WeightsLost`.
        """
        dialect, served = self._serving()
        if request.request_id in self._flights:
            raise BackendRejected(f"request '{request.request_id}' is refused: one of that id is in flight")
        one = self._generation(request, served)
        flight = Flight(one, dialect.generation(one), served)
        self._flights[request.request_id] = flight
        start_s = self._clock.now()
        try:
            self._watch.begin()
            reply = await flight.reply(self._fetch(flight))
            answer = WireAnswer((), (), FinishReason.ABORT, ())
            if reply is not None:
                answer = dialect.answer((await self._success(reply, dialect, flight)).body)
            times = Times(request.submit_s, start_s, self._clock.now())
            return completion(answer, self._expected(flight), times)
        except NoAnswer as error:
            raise BackendUnavailable(f"{self.name} answered what is no answer: {error}") from None
        except (WeightsLost, WorkerAbsent):
            self._dialect = self.weights.version = None  # it is another one, or will be when it comes back
            raise
        finally:
            flight.ended.set()
            del self._flights[request.request_id]

    async def abort(self, request_ids: Collection[str]) -> None:
        """As `Backend.abort`. Returns when they have ended, or after some tries."""
        flights = [self._flights[one] for one in request_ids if one in self._flights]
        for flight in flights:
            flight.abort()
        for _ in range(ABORT_TRIES):
            flights = [flight for flight in flights if flight.has_begun and not flight.ended.is_set()]
            if not flights or self._dialect is None:
                return
            for call in self._dialect.aborting([flight.one.wire_id for flight in flights]):
                await self._client.ask(call)
            waits = [asyncio.ensure_future(flight.ended.wait()) for flight in flights]
            await asyncio.wait(waits, timeout=ABORT_WAIT_S)
            for wait in waits:
                wait.cancel()

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
                await self.weights.drop(dialect, {version, *(one.served for one in self._flights.values())})
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
        return await self.weights.scores(*self._scoring(token_ids))

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

    async def _fetch(self, flight: Flight) -> Reply:
        """The one reply, at the end of the answer."""
        async with self._gate.place(len(flight.one.token_ids) + flight.one.sampling.max_tokens):
            flight.has_begun = True
            return await self._client.ask(flight.call)

    async def _ask_http(self) -> None:
        await self._client.ask(Call("GET", "/health"))

    async def _ask_engine(self) -> None:
        if self._dialect is not None and self.weights.version is not None:
            await self.weights.standing(self._dialect, self.weights.version)

    def _is_silent(self, error: BackendUnavailable) -> None:
        for flight in self._flights.values():
            flight.fail(error)

    async def _success(self, reply: Reply, dialect: Dialect, flight: Flight) -> Reply:
        """The reply, if it is one. What a server refuses that has lost its weights is that loss."""
        if reply.is_success:
            return reply
        error = self._client.error(flight.call, reply)
        if reply.status in (429, 503) and reply.retry_after_s is not None:
            self._gate.close_for(reply.retry_after_s)
        elif 400 <= reply.status < 500 and await self._has_lost(flight, dialect):
            raise WeightsLost(
                f"{self.name} has lost the weights {flight.served}: it was started again, or somebody else changed them"
                f" ({error})"
            )
        raise error

    async def _has_lost(self, flight: Flight, dialect: Dialect) -> bool:
        """Whether the weights are gone that the request asked for; publishing in between is no loss."""
        async with self._publishing:
            is_pinned = flight.one.adapter is not None
            version = flight.served if is_pinned else self.weights.version or flight.served
            return await self.weights.standing(dialect, version) is Standing.LOST

    def _generation(self, request: GenerationRequest, served: PolicyVersion) -> Generation:
        prompt, sampling = request.prompt, request.sampling
        if prompt.model_inputs:
            raise BackendRejected(
                f"request '{request.request_id}' has encoded inputs ({', '.join(prompt.model_inputs)}) beside its"
                " tokens, which servers are not given: use --rollout_backend transformers"
            )
        most = sampling.max_tokens
        if self.facts is not None and self.facts.max_model_len is not None:
            most = min(most, self.facts.max_model_len - len(prompt.token_ids))
        if most < 1 or not len(prompt.token_ids):
            raise BackendRejected(
                f"a prompt of {len(prompt.token_ids)} tokens leaves no room on {self.name}, which takes 1 to"
                f" {self.facts and self.facts.max_model_len} in all"
            )
        wire_id = f"{self._labels.run}-{next(self._numbers)}"
        return Generation(
            wire_id, prompt.token_ids, replace(sampling, max_tokens=most), self.weights.adapter(served)
        )

    def _expected(self, flight: Flight) -> Expected:
        return Expected(
            url=self.name,
            labels=self._labels,
            served=flight.served,
            is_pinned=flight.one.adapter is not None,
            max_tokens=flight.one.sampling.max_tokens,
            vocabulary=self._needs.vocabulary,
        )

    def _scoring(self, token_ids: IntArray) -> tuple[Dialect, IntArray, PolicyVersion]:
        dialect, version = self._serving()
        return dialect, np.asarray(token_ids), version

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
        await self.abort(tuple(self._flights))
        if self._dialect is not None:
            await self.weights.drop(self._dialect, ())
