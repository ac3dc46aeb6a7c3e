"""Calls to the replicas of a served reward."""

from __future__ import annotations

import asyncio

from swift_rlx.backends.remote_endpoint import ApiKey, Endpoint
from swift_rlx.backends.remote_http import Call, HttpClient, Reply
from swift_rlx.errors import BackendError, BackendUnavailable, RewardError
from swift_rlx.reward_service.address import KEY_VARIABLE
from swift_rlx.reward_service.wire import Listing, NotAReply, Offer, decode

LISTING_LIMIT_S = 10.0
WATCH_S = 5.0
"""How often a replica that scores for long is asked whether it is up, and how long it may take to say so."""


def token_hint(http: Reply) -> str:
    """What to do about a refusal for want of a token; empty for every other one."""
    return f"; the variable {KEY_VARIABLE} has to hold its token" if http.status in (401, 403) else ""


class ReplicaCalls:
    """With one key for all replicas. Used from any event loop."""

    def __init__(self, key: ApiKey | None) -> None:
        self._key = key

    async def ask(self, endpoint: Endpoint, call: Call) -> Reply:
        """Raises `BackendError`."""
        # A client a call: ms-swift may run each step's rewards in a new event loop, and connections are not kept.
        client = HttpClient(endpoint, self._key)
        try:
            return await client.ask(call)
        finally:
            await client.close()

    async def ask_watched(self, endpoint: Endpoint, call: Call) -> Reply:
        """As `ask`, but given up where the replica hangs: its `/health` answers whatever it is at."""
        asking = asyncio.ensure_future(self.ask(endpoint, call))
        watching = asyncio.ensure_future(self._until_silent(endpoint))
        ends: list[asyncio.Future[Reply] | asyncio.Future[None]] = [asking, watching]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise BackendUnavailable(f"{endpoint.url} hangs: its /health does not answer")
        finally:
            asking.cancel()
            watching.cancel()

    async def offer(self, endpoint: Endpoint, name: str) -> Offer:
        """What a replica says about a reward. Raises `RewardError`."""
        try:
            http = await asyncio.wait_for(self.ask(endpoint, Call("GET", "/v1/rewards")), LISTING_LIMIT_S)
            if not http.is_success:
                raise RewardError(f"{endpoint.url} refused: {self.words(http)}{token_hint(http)}")
            offers = {offer.name: offer for offer in decode(http.body, Listing).rewards}
        except BackendError as error:
            raise RewardError(str(error)) from error
        except asyncio.TimeoutError:
            raise RewardError(f"{endpoint.url} did not answer within {LISTING_LIMIT_S:g} s") from None
        except NotAReply as error:
            raise RewardError(f"{endpoint.url} {error}") from None
        if name not in offers:
            raise RewardError(f"{endpoint.url} serves {', '.join(offers) or 'nothing'}")
        return offers[name]

    def words(self, http: Reply) -> str:
        """Those of a refusal, without the key."""
        return HttpClient(Endpoint("", "", 0), self._key).words(http)

    async def _until_silent(self, endpoint: Endpoint) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                await asyncio.wait_for(self.ask(endpoint, Call("GET", "/health")), WATCH_S)
            except (BackendError, asyncio.TimeoutError):
                return
