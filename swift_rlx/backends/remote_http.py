"""Calls to a server: bounded in bytes, without redirects and proxies; failures are our errors with URL and cause."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec

from swift_rlx.backends.remote_answer import EventFault, NoAnswer
from swift_rlx.backends.remote_endpoint import (
    FILE_VARIABLE,
    KEY_VARIABLE,
    ApiKey,
    Endpoint,
    unused_proxies,
)
from swift_rlx.backends.remote_events import EventReader
from swift_rlx.errors import BackendError, BackendRejected, BackendUnavailable, BackendUnfit, WorkerAbsent

CONNECT_LIMIT_S = 10.0
SMALL_BYTES = 1 << 20
EVENTS = "text/event-stream"
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")
"""What versions of OpenSSL say of an answer in plain HTTP."""
MAX_WORDS = 500
"""Characters of a server's own words in an error."""
MAX_RETRY_AFTER_S = 300.0
REQUEST_FAULTS = (400, 413, 414, 422)
"""By these a server refuses this request; by all others it says something about itself."""


@dataclass(frozen=True, slots=True)
class Call:
    """`body` is sent as JSON; an answer of more than `max_bytes` is not read to its end."""

    method: str
    path: str
    body: object = None
    max_bytes: int = SMALL_BYTES


@dataclass(frozen=True, slots=True)
class Reply:
    """`retry_after_s`: for how long the server wants to be left alone; None: it does not say."""

    status: int
    body: bytes
    retry_after_s: float | None = None

    @property
    def is_success(self) -> bool:
        """Whether the server did what it was asked."""
        return 200 <= self.status < 300


class FailedStatus(Exception):
    """The cause of an error: a server said by a status of 500 or more that it failed."""


class HttpClient:
    """For one server, in one asyncio loop. `key`: sent with every call, shown nowhere."""

    def __init__(self, endpoint: Endpoint, key: ApiKey | None = None) -> None:
        self.endpoint = endpoint
        self._key = key
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def ask(self, call: Call) -> Reply:
        """The reply, whatever its status.

        Raises `WorkerAbsent` where nobody listens, `BackendUnfit` where somebody does without TLS who is asked in TLS,
        and `BackendUnavailable` for every other failure of the way.
        """
        return await self._exchange(call)

    async def follow(self, call: Call, take: Callable[[bytes], None]) -> Reply:
        """Ask for a stream of events; `take` gets the data of each as it comes, and the reply has none of it.

        A reply without success has its body. Raises as `ask`, what `take` raises, and `NoAnswer` for a success that is
        no such stream or has an event of more than `max_bytes`.
        """
        return await self._exchange(call, take)

    async def _exchange(self, call: Call, take: Callable[[bytes], None] | None = None) -> Reply:
        if self._is_closed:
            raise BackendUnavailable(f"the connection to {self.endpoint.url} is closed")
        try:
            async with self._open().request(
                call.method,
                self.endpoint.url + call.path,
                data=None if call.body is None else msgspec.json.encode(call.body),
                allow_redirects=False,
            ) as response:
                if take is not None and 200 <= response.status < 300:
                    await self._follow(response, call, take)
                    body = b""
                else:
                    body = await self._read(response, call)
                return Reply(response.status, body, _retry_after(response.headers.get("Retry-After")))
        except (BackendError, NoAnswer, EventFault):  # an OSError and a ValueError among them
            raise
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
            raise self._failure(error) from error

    async def body_of(self, call: Call) -> bytes:
        """The body of a successful reply. Raises what `ask` and `error` say."""
        reply = await self.ask(call)
        if not reply.is_success:
            raise self.error(call, reply)
        return reply.body

    def error(self, call: Call, reply: Reply) -> BackendError:
        """What an unsuccessful reply means: `BackendRejected` for a fault of the request, else `BackendUnavailable`."""
        words = self.words(reply)
        what = (
            f"{self.endpoint.url} answered {call.path.partition('?')[0]} with status {reply.status}: {words}"
        )
        if reply.status in REQUEST_FAULTS:
            return BackendRejected(what)
        if reply.status in (401, 403) and self._key is None:
            what += f"; the variable {KEY_VARIABLE} has to hold its key, or {FILE_VARIABLE} to name a file that does"
        elif reply.status == 401 and self._key is not None:
            what += f"; the key in {self._key.source} is not the one that it wants: put that one there"
        error = BackendUnavailable(what)
        if reply.status >= 500:
            error.__cause__ = FailedStatus(reply.status)
        return error

    def words(self, reply: Reply) -> str:
        """The server's own, on one line, without the key."""
        text = _message(reply.body) or "no reason given"
        if self._key is not None:
            text = self._key.redacted(text)
        plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return plain if len(plain) <= MAX_WORDS else plain[:MAX_WORDS] + "..."

    async def close(self) -> None:
        """End all calls. May be called twice."""
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Made here and not by aiohttp, whose own reads SSL_CERT_FILE when it is imported.
            trust = ssl.create_default_context() if self.endpoint.is_encrypted else True
            self._session = aiohttp.ClientSession(
                # A server closes a connection that was idle, or on which it failed, without saying so: a call on it
                # would break off.
                connector=aiohttp.TCPConnector(limit=0, force_close=True, ssl=trust),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                headers={
                    "Accept-Encoding": "identity",
                    "Content-Type": "application/json",
                    **(self._key.headers if self._key else {}),
                },
            )
        return self._session

    async def _read(self, response: aiohttp.ClientResponse, call: Call) -> bytes:
        parts, size = [], 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > call.max_bytes:
                response.close()
                raise BackendUnavailable(
                    f"{self.endpoint.url} answered {call.path} with more than the {call.max_bytes} bytes that an answer"
                    " can have"
                )
            parts.append(part)
        return b"".join(parts)

    async def _follow(
        self, response: aiohttp.ClientResponse, call: Call, take: Callable[[bytes], None]
    ) -> None:
        if response.content_type != EVENTS:
            raise NoAnswer(f"it answered with {response.content_type[:40]!r}, where {EVENTS!r} was asked for")
        events = EventReader(call.max_bytes)
        async for part in response.content.iter_any():
            for data in events.feed(part):
                take(data)

    def _failure(self, error: Exception) -> BackendError:
        url = self.endpoint.url
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return BackendUnavailable(
                f"{url} shows a certificate that is not trusted ({error.certificate_error}); set SSL_CERT_FILE to the"
                " certificate of its authority"
            )
        if isinstance(error, aiohttp.ClientConnectorSSLError):
            reason = getattr(error.os_error, "reason", None) or "it broke off"
            if reason in NO_TLS:
                plain = url.replace("https:", "http:", 1)
                return BackendUnfit(f"{url} answers without TLS: it is {plain}, without the s")
            return BackendUnavailable(f"{url} cannot be reached by TLS: {reason.lower().replace('_', ' ')}")
        if isinstance(error, aiohttp.ClientConnectorError):
            # Not a plain `OSError` of a call: nothing was sent.
            proxies = unused_proxies(self.endpoint, os.environ)
            hint = f" ({proxies} is set and not used: servers are reached directly)" if proxies else ""
            what = f"{url} cannot be reached{hint}: {_reason(error.os_error)}"
            kind = WorkerAbsent if isinstance(error.os_error, ConnectionRefusedError) else BackendUnavailable
            return kind(f"{what}; is the server up, and is this its address?")
        if isinstance(error, aiohttp.ServerTimeoutError):
            return BackendUnavailable(f"{url} cannot be reached: no connection within {CONNECT_LIMIT_S:g} s")
        words = str(error) or type(error).__name__
        if self._key is not None:
            words = self._key.redacted(words)
        return BackendUnavailable(f"{url} broke off: {words[:MAX_WORDS]}")


def may_have_ended(error: BackendError) -> bool:
    """Whether a call failed as it does where the server ends: its connection did, or it was told so with a 5xx."""
    return isinstance(error.__cause__, (aiohttp.ClientError, OSError, FailedStatus))


def _reason(error: OSError) -> str:
    return (os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)).lower()


class _Words(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"null")
    message: msgspec.Raw = msgspec.Raw(b"null")
    error_message: msgspec.Raw = msgspec.Raw(b"null")
    detail: msgspec.Raw = msgspec.Raw(b"null")


def _message(body: bytes) -> str:
    """The text that a JSON answer has in one of the usual places, else the beginning of the body."""
    try:
        found = msgspec.json.decode(body, type=_Words)
        for raw in (found.error, found.message, found.error_message, found.detail):
            inner = bytes(raw)
            if inner.startswith(b'"'):
                return str(msgspec.json.decode(inner, type=str))
            if inner.startswith(b"{"):
                return _message(inner)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    return body[: 4 * MAX_WORDS].decode("utf-8", "replace")


def _retry_after(text: str | None) -> float | None:
    """Seconds, from a number or a date; at most MAX_RETRY_AFTER_S."""
    if text is None:
        return None
    try:
        seconds = (
            float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)
