"""The requests to one server: sent within its limits, followed event by event, and ended.

What comes of an answer is told at once, so that another server can go on behind it when this one fails. vLLM says with
the end of an answer which weights made which token; until then it is known from our own publishing: the server makes
no token while it takes weights, so what comes before we let them live is of those before (see `remote_stream.py`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from swift_rlx.backends.answer_prefix import seed_behind, text_before, usable_prefix
from swift_rlx.backends.base import GenerationRequest
from swift_rlx.backends.progress import OnProgress
from swift_rlx.backends.remote_answer import (
    EventFault,
    Expected,
    Labels,
    NoAnswer,
    Times,
    WireAnswer,
    completion,
)
from swift_rlx.backends.remote_dialect import Dialect, Generation, Standing
from swift_rlx.backends.remote_events import END
from swift_rlx.backends.remote_flight import Flight
from swift_rlx.backends.remote_gate import Gate
from swift_rlx.backends.remote_http import HttpClient, Reply
from swift_rlx.backends.remote_stream import StreamedAnswer
from swift_rlx.backends.remote_weights import RemoteWeights
from swift_rlx.clock import Clock
from swift_rlx.errors import BackendError, BackendRejected, BackendUnavailable, WeightsLost
from swift_rlx.types import Chunk, Completion, FinishReason, PolicyVersion

ABORT_TRIES, ABORT_WAIT_S = 8, 0.5
"""An abort that comes before the server knows the request is lost, so it is said again."""

Decode = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True)
class Server:
    """What requests have to know of the server. `publishing`: held while it takes weights; `vocabulary`: that it has.

    `decode`: token ids as text; without it no answer with stop strings goes on behind another.
    """

    client: HttpClient
    gate: Gate
    weights: RemoteWeights
    labels: Labels
    publishing: asyncio.Lock
    vocabulary: int
    clock: Clock
    decode: Decode | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return self.client.endpoint.url


class RemoteRequests:
    """In one asyncio loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._flights: dict[str, Flight] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """That are on their way."""
        return len(self._flights)

    @property
    def versions(self) -> set[PolicyVersion]:
        """With which they began."""
        return {one.served for one in self._flights.values()}

    async def answer(
        self,
        request: GenerationRequest,
        on_progress: OnProgress,
        dialect: Dialect,
        served: PolicyVersion,
        max_model_len: int | None,
    ) -> Completion:
        """As `Backend.generate`. Raises `WorkerAbsent` where nobody listens, and `WeightsLost`."""
        if request.request_id in self._flights:
            raise BackendRejected(f"request '{request.request_id}' is refused: one of that id is in flight")
        start_s = self._server.clock.now()
        flight = self._flight(request, dialect, served, max_model_len)
        self._flights[request.request_id] = flight
        try:
            reply = await flight.reply(self._fetch(flight, dialect, on_progress))
            answer = WireAnswer((), (), FinishReason.ABORT, ())
            if reply is not None:
                await self._check_success(reply, dialect, flight)
                answer = flight.stream.whole()
            now_s = self._server.clock.now()
            times = Times(request.submit_s, start_s, flight.stream.first_token_s, now_s)
            return completion(answer, flight.expected, times, flight.behind)
        except NoAnswer as error:
            words = f"{self._server.url} answered what is no answer: {error}"
            raise BackendUnavailable(words).losing(flight.stream.num_tokens) from None
        except BackendError as error:
            raise error.losing(max(error.lost_tokens, flight.stream.num_tokens)) from error.__cause__
        finally:
            flight.ended.set()
            del self._flights[request.request_id]

    async def abort(self, request_ids: Collection[str], dialect: Dialect | None) -> None:
        """As `Backend.abort`. Returns when they have ended, or after some tries."""
        flights = [self._flights[one] for one in request_ids if one in self._flights]
        for flight in flights:
            flight.abort()
        for _ in range(ABORT_TRIES):
            flights = [flight for flight in flights if flight.has_begun and not flight.ended.is_set()]
            if not flights or dialect is None:
                return
            for call in dialect.aborting([flight.one.wire_id for flight in flights]):
                await self._server.client.ask(call)
            waits = [asyncio.ensure_future(flight.ended.wait()) for flight in flights]
            await asyncio.wait(waits, timeout=ABORT_WAIT_S)
            for wait in waits:
                wait.cancel()

    async def abort_all(self, dialect: Dialect | None) -> None:
        """`abort` what is on its way."""
        await self.abort(tuple(self._flights), dialect)

    def fail(self, error: BackendUnavailable) -> None:
        """Wait for none of them any longer."""
        for flight in self._flights.values():
            flight.fail(error)

    async def _fetch(self, flight: Flight, dialect: Dialect, on_progress: OnProgress) -> Reply:
        """Follow the answer to its end; the reply without it."""
        server, is_over = self._server, False

        def take(data: bytes) -> None:
            nonlocal is_over
            if is_over:
                raise NoAnswer("it went on behind the end of its stream")
            if is_over := data == END:
                return
            live = server.weights.live or flight.served
            chunk = flight.stream.take(dialect.piece(data), live, server.clock.now())
            if chunk is not None:
                on_progress(chunk)

        async with server.gate.place(len(flight.one.token_ids) + flight.one.sampling.max_tokens):
            flight.has_begun = True
            try:
                reply = await server.client.follow(flight.call, take)
            except EventFault as fault:
                has_begun = flight.stream.first_token_s is not None  # so it was no fault of the request
                return Reply(500 if has_begun else fault.status, fault.body)
        if reply.is_success and not is_over:
            raise NoAnswer("its stream broke off before its end")
        return reply

    async def _check_success(self, reply: Reply, dialect: Dialect, flight: Flight) -> None:
        """Raise what a reply says that is none. What a server refuses that has lost its weights is that loss."""
        server = self._server
        if reply.is_success:
            return
        error = server.client.error(flight.call, reply)
        if reply.status in (429, 503) and reply.retry_after_s is not None:
            server.gate.close_for(reply.retry_after_s)
        elif 400 <= reply.status < 500 and await self._has_lost(flight, dialect):
            raise WeightsLost(
                f"{server.url} has lost the weights {flight.served}: it was started again, or somebody else changed"
                f" them ({error})"
            )
        raise error

    async def _has_lost(self, flight: Flight, dialect: Dialect) -> bool:
        """Whether the weights are gone that the request asked for; publishing in between is no loss."""
        weights = self._server.weights
        async with self._server.publishing:
            is_pinned = flight.one.adapter is not None
            version = flight.served if is_pinned else weights.version or flight.served
            return await weights.standing(dialect, version) is Standing.LOST

    def _flight(
        self,
        request: GenerationRequest,
        dialect: Dialect,
        served: PolicyVersion,
        max_model_len: int | None,
    ) -> Flight:
        prompt, sampling, server = request.prompt, request.sampling, self._server
        if prompt.model_inputs:
            raise BackendRejected(
                f"request '{request.request_id}' has encoded inputs ({', '.join(prompt.model_inputs)}) beside its"
                " tokens, which servers are not given: use --rollout_backend transformers"
            )
        most = sampling.max_tokens
        if max_model_len is not None:
            most = min(most, max_model_len - len(prompt.token_ids))
        if most < 1 or not len(prompt.token_ids):
            raise BackendRejected(
                f"a prompt of {len(prompt.token_ids)} tokens leaves no room on {server.url}, which takes 1 to"
                f" {max_model_len} in all"
            )
        behind = self._behind(request, dialect, most)
        kept = 0 if behind is None else behind.num_tokens
        one = Generation(
            f"{server.labels.run}-{next(self._numbers)}",
            text_before(request, behind),
            replace(sampling, max_tokens=most - kept, seed=seed_behind(sampling.seed, kept)),
            server.weights.adapter(served),
        )
        expected = Expected(
            url=server.url,
            labels=server.labels,
            served=served,
            is_pinned=one.adapter is not None,
            max_tokens=most - kept,
            vocabulary=server.vocabulary,
        )
        stream = StreamedAnswer(expected, kept, server.clock.now())
        return Flight(one, dialect.generation(one), expected, stream, behind)

    def _behind(self, request: GenerationRequest, dialect: Dialect, most: int) -> Chunk | None:
        """What of the request's prefix the server goes on behind; None: it begins anew."""
        sampling, decode = request.sampling, self._server.decode
        if request.prefix is None or not dialect.goes_on(sampling) or (sampling.stop and decode is None):
            return None
        behind = usable_prefix(request, decode or _no_text)
        return behind if behind is not None and behind.num_tokens < most else None


def _no_text(token_ids: list[int]) -> str:
    """Of an answer without stop strings nobody looks at the text."""
    return ""
