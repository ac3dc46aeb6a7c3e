"""A served reward as a reward of a run: `--reward_funcs http://HOST:PORT/NAME@VERSION`.

Invariants
- All rows of a call are scored by one version, the one in use when the call was answered; `answer` says which.
- A version that the address does not allow is never used. A change is logged, counted, and never undone.
- Whatever bytes a service sends, a call ends with scores or a RewardError, within `limit_s`.
- Only what can pass is tried again: no connection, 429, 5xx, timeouts, bytes that are no reply. Any other status is an
  error at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import msgspec

from swift_rlx.backends.remote_endpoint import ApiKey, read_api_key
from swift_rlx.backends.remote_http import Call, Reply
from swift_rlx.errors import BackendError, RewardError, RewardUnavailable
from swift_rlx.reward_service.address import KEY_VARIABLE, ServiceAddress
from swift_rlx.reward_service.replica_calls import ReplicaCalls, token_hint
from swift_rlx.reward_service.replicas import Replica, Replicas
from swift_rlx.reward_service.shadow import Shadow
from swift_rlx.reward_service.wire import (
    MAX_BODY_BYTES,
    TOO_MANY,
    VERSION_CHANGED,
    NotAReply,
    Offer,
    Refusal,
    Row,
    ScoreReply,
    ScoreRequest,
    decode,
    decode_scores,
)

logger = logging.getLogger("swift_rlx")

MAX_INFLIGHT = 64
"""Calls on their way at a time, to all replicas together."""
BUSY_S = 1.0
"""How long a replica is left alone that says 429 or 503 and not for how long."""


@dataclass(frozen=True)
class Answer:
    """One score a row; the version that made all of them; by row, why the reward failed there."""

    scores: list[float | None]
    version: str
    faults: Mapping[int, str] = field(default_factory=dict)


class RowLike(Protocol):
    """A completion to be scored, and the columns of its row."""

    @property
    def completion(self) -> Any: ...

    @property
    def columns(self) -> Mapping[str, Any]: ...


class ServiceReward:
    """A callable reward of list form, asynchronous; usable from several event loops, one after the other or at once.

    `key`: by default that of the environment. `limit_s`: for a call. `absent_limit_s`: how long replicas may refuse, be
    absent, or answer with what is no answer, before a call is given up.
    """

    def __init__(
        self,
        address: ServiceAddress,
        key: ApiKey | None = None,
        *,
        limit_s: float = 300.0,
        absent_limit_s: float = 15.0,
        is_shadow: bool = False,
    ) -> None:
        self.name = address.name
        self.rows_by_version: Counter[str] = Counter()
        self.offer: Offer | None = None
        self._address = address
        key = key or read_api_key(os.environ, KEY_VARIABLE)
        self._calls = ReplicaCalls(key)
        self._limit_s, self._absent_limit_s, self._is_shadow = limit_s, absent_limit_s, is_shadow
        self._replicas = Replicas(address.endpoints, address.versions, time.monotonic)
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self.shadow: Shadow | None = None
        self._why = "no replica was asked"
        """The last trouble of any call."""
        if address.shadow:
            tried = replace(address, versions=(address.shadow,), shadow="")
            reward = ServiceReward(tried, key, limit_s=limit_s, absent_limit_s=absent_limit_s, is_shadow=True)
            self.shadow = Shadow(reward)

    @property
    def version(self) -> str:
        """The one in use; empty before the first answer to an address without a version."""
        return self._replicas.version

    async def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """As `score`, with columns of one value a row; those of another kind are not sent."""
        lists = {name: value for name, value in columns.items() if isinstance(value, list | tuple)}
        rows = [
            Row(completion, {name: value[at] for name, value in lists.items()})
            for at, completion in enumerate(completions)
        ]
        return await self.score(rows)

    async def score(self, rows: Sequence[RowLike]) -> list[float | None]:
        """One score a row. Raises `RewardError`, also where the reward failed on a row in the service."""
        answer = await self.answer(rows)
        for row, reason in sorted(answer.faults.items()):
            where = f" on row {row}" if len(rows) > 1 else ""
            raise RewardError(f"{self.name} {answer.version} failed{where}: {reason}")
        return answer.scores

    async def answer(self, rows: Sequence[RowLike]) -> Answer:
        """Raises `RewardUnavailable`: no replica could be used for `absent_limit_s`. Raises `RewardError`: no answer
        within `limit_s`, or a refusal that would be repeated.
        """
        sent = self._sent(rows)
        async with self._slot():
            try:
                reply = await asyncio.wait_for(self._until_answered(sent), self._limit_s)
            except asyncio.TimeoutError:
                raise RewardError(
                    f"{self._label} had no answer within {self._limit_s:g} s: {self._why}"
                ) from None
        self.rows_by_version[reply.version] += len(sent)
        if self.shadow is not None and reply.version != self._address.shadow:
            self.shadow.compare(sent, reply)
        return Answer(reply.scores, reply.version, reply.faults)

    async def describe(self) -> Offer:
        """What the replicas say about the reward, before a run; the first version of the address that one has is used.

        Raises `RewardError` where none has any.
        """
        asking = (self._calls.offer(replica.endpoint, self.name) for replica in self._replicas.all)
        found = await asyncio.gather(*asking, return_exceptions=True)
        offers = [one for one in found if isinstance(one, Offer)]
        self._replicas.know([one.version if isinstance(one, Offer) else "" for one in found])
        for version in self._address.versions or [offer.version for offer in offers]:
            for offer in offers:
                if offer.version == version:
                    self._replicas.version, self.offer = version, offer
                    return offer
        others = [f"version {offer.version} is served" for offer in offers]
        refused = [str(one) for one in found if not isinstance(one, Offer)]
        raise RewardError(f"{self._label} is not served: {'; '.join(refused + others)}")

    @property
    def _label(self) -> str:
        urls = ", ".join(replica.endpoint.url for replica in self._replicas.all)
        return f"reward {self.name!r} {self.version} of {urls}".replace("  ", " ")

    def _sent(self, rows: Sequence[RowLike]) -> list[Row]:
        """Only columns that the reward reads, and that JSON can hold."""
        offer = self.offer or Offer(self.name, "", takes_any=True)
        wanted = {*offer.required, *offer.optional}
        left_out: set[str] = set()
        for row in rows:
            for name, value in row.columns.items():
                if name in left_out:
                    continue
                if not (offer.takes_any or name in wanted):
                    left_out.add(name)
                elif (trouble := _unfit(value)) and name in offer.required:
                    raise RewardError(
                        f"{self._label} needs the column {name!r}, which JSON cannot hold: {trouble}"
                    )
                elif trouble:
                    left_out.add(name)
        return [
            Row(row.completion, {name: value for name, value in row.columns.items() if name not in left_out})
            for row in rows
        ]

    def _slot(self) -> asyncio.Semaphore:
        return self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_INFLIGHT))

    async def _until_answered(self, rows: list[Row]) -> ScoreReply:
        absent_s = time.monotonic() + self._absent_limit_s
        while True:
            if (change := self._replicas.change_version()) is not None:
                logger.warning(
                    f"reward {self.name!r}: version {change[0]} is not served any more, {change[1]} is used now"
                )
                if self.shadow is not None and change[1] == self._address.shadow:
                    self.shadow.tell(change[0])
            is_late = time.monotonic() > absent_s
            replica = self._replicas.pick(self.version, is_late=is_late)
            if replica is not None and (reply := await self._attempt(replica, rows)) is not None:
                return reply
            if replica is None and is_late:
                raise RewardUnavailable(
                    f"{self._label} cannot be had for {self._absent_limit_s:g} s: {self._why}"
                )
            if replica is None:
                await asyncio.sleep(max(0.01, min(self._replicas.rest_s(), self._absent_limit_s)))

    async def _attempt(self, replica: Replica, rows: list[Row]) -> ScoreReply | None:
        """The reply of one replica, or None where another try may have one. Raises `RewardError` where none will."""
        request = ScoreRequest(self.name, rows, self.version)
        try:
            http = await self._calls.ask_watched(
                replica.endpoint, Call("POST", "/v1/score", request, MAX_BODY_BYTES)
            )
        except asyncio.CancelledError:
            self._replicas.released(replica)
            raise
        except BackendError as error:
            self._why = str(error)
            self._failed(replica)
            return None
        if http.is_success:
            return self._read_scores(replica, http, request)
        detail = f"{replica.endpoint.url} refused with status {http.status}: {self._calls.words(http)}"
        self._why = detail
        if http.status == VERSION_CHANGED:
            self._is_back(replica, self._replicas.serves_another(replica, _serves(http)))
        elif http.status in (TOO_MANY, 503):
            self._replicas.is_busy(replica, http.retry_after_s or BUSY_S)
        elif http.status >= 500 or http.status == 408:
            self._failed(replica)
        else:
            self._replicas.released(replica)
            raise RewardError(f"{self._label} cannot be used: {detail}{token_hint(http)}")
        return None

    def _read_scores(self, replica: Replica, http: Reply, request: ScoreRequest) -> ScoreReply | None:
        try:
            reply = decode_scores(http.body, len(request.rows))
        except NotAReply as error:
            self._why = f"{replica.endpoint.url} {error}"
            self._failed(replica)
            return None
        if not reply.version or (request.version and reply.version != request.version):
            self._why = (
                f"{replica.endpoint.url} scored by version {reply.version!r}, and not by {request.version!r}"
            )
            self._failed(replica)
            return None
        self._is_back(replica, self._replicas.answered(replica, reply.version))
        return reply

    def _is_back(self, replica: Replica, was_gone: bool) -> None:
        if was_gone and not self._is_shadow:
            logger.info(f"reward {self.name!r}: {replica.endpoint.url} answers again")

    def _failed(self, replica: Replica) -> None:
        if self._replicas.failed(replica) and not self._is_shadow:
            logger.warning(
                f"reward {self.name!r}: {replica.endpoint.url} is left out until it answers again: {self._why}"
            )


def _unfit(value: Any) -> str:
    """Why JSON cannot hold the value; empty where it can."""
    if not isinstance(value, str | int | float | list | tuple | dict | None):
        return f"it is a {type(value).__name__}"
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        return str(error) or type(error).__name__
    return ""


def _serves(http: Reply) -> str:
    """The version that a replica says it has; empty where it does not say."""
    try:
        return decode(http.body, Refusal).serves
    except NotAReply:
        return ""
