"""Which errors of a reward may pass by themselves: those of networks and busy servers, and no others."""

from __future__ import annotations

import asyncio
from typing import Any

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that say "later"; every other 4xx says that the request is wrong, and would be so again."""
_CLIENT_ERRORS = {
    ("aiohttp", "ClientConnectionError"),
    ("aiohttp", "ClientPayloadError"),
    ("httpx", "TransportError"),
    ("openai", "APIConnectionError"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
}
"""Of libraries that need not be installed: their package and the name of the class."""
MAX_RETRY_AFTER_S = 60.0


def is_transient(error: BaseException, is_async: bool = False) -> bool:
    """Whether another try may succeed.

    An error may say so itself, with an attribute `transient`. Of one with an HTTP status that decides. A TimeoutError
    counts for an asynchronous reward, where it is a network's; that of a synchronous one is most likely the time limit
    that a verifier sets for itself, and comes again.
    """
    told = getattr(error, "transient", None)
    if isinstance(told, bool):
        return told
    if (status := _status(error)) is not None:
        return status in BUSY
    if isinstance(error, ConnectionError) or _is_of_client(error):
        return True
    return is_async and isinstance(error, TimeoutError | asyncio.TimeoutError)


def retry_after_s(error: BaseException) -> float | None:
    """Seconds that the server asked to wait: an attribute `retry_after_s`, or the header; at most a minute."""
    headers = getattr(error, "headers", None) or getattr(getattr(error, "response", None), "headers", None)
    told: Any = getattr(error, "retry_after_s", None)
    if told is None and headers is not None:
        told = headers.get("Retry-After")
    try:
        seconds = float(told)
    except (TypeError, ValueError):  # a date, or nothing
        return None
    return min(seconds, MAX_RETRY_AFTER_S) if seconds >= 0 else None


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    for holder, name in ((error, "status_code"), (error, "status"), (response, "status_code")):
        status = getattr(holder, name, None)
        if isinstance(status, int) and not isinstance(status, bool):
            return status
    return None


def _is_of_client(error: BaseException) -> bool:
    return any(
        (kind.__module__.partition(".")[0], kind.__name__) in _CLIENT_ERRORS for kind in type(error).__mro__
    )
