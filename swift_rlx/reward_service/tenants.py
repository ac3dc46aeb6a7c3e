"""Who may ask a reward service, and how much at a time: tokens, and the limits of each tenant.

A token comes from the variable `SWIFT_RLX_REWARD_TOKEN` or the file that `SWIFT_RLX_REWARD_TOKEN_FILE` names; several
tenants from a JSON file: `[{"name": "red", "token": "...", "requests_per_min": 600, "max_rows": 4096}]`. Only digests
of tokens are kept.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from swift_rlx.errors import ConfigError
from swift_rlx.reward_service.wire import TOO_MANY

TOKEN_VARIABLE = "SWIFT_RLX_REWARD_TOKEN"
MAX_BYTES = 128 << 20
"""Of one tenant's requests in flight."""


@dataclass(frozen=True)
class Tenant:
    """`requests_per_min`, `max_rows` (in flight): its limits. `is_admin`: may change the number of workers."""

    name: str
    digest: bytes = b""
    requests_per_min: int = 6000
    max_rows: int = 16384
    is_admin: bool = False


_NO_RATE = 10**9
EVERYBODY = Tenant("everybody", requests_per_min=_NO_RATE, is_admin=True)
"""The only tenant of a service without tokens."""


class Refused(Exception):
    """A request that is not served: HTTP status, one sentence, and when to come again."""

    def __init__(self, status: int, sentence: str, retry_after_s: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry_after_s = status, sentence, retry_after_s


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    token: str
    requests_per_min: int = 6000
    max_rows: int = 16384
    admin: bool = False


def token_tenant(environment: Mapping[str, str]) -> Tenant | None:
    """The one tenant of a service whose token the environment holds. Raises `ConfigError`, which does not show it."""
    text, path = environment.get(TOKEN_VARIABLE), environment.get(f"{TOKEN_VARIABLE}_FILE")
    if text and path:
        raise ConfigError(f"{TOKEN_VARIABLE} and {TOKEN_VARIABLE}_FILE are both set; unset one of them")
    where = TOKEN_VARIABLE
    if path:
        where = f"{TOKEN_VARIABLE}_FILE {path}"
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where} cannot be read: {error}; name a file that holds the token") from None
    elif not text:
        return None
    return Tenant("owner", _digest(_checked(text or "", where)), _NO_RATE, is_admin=True)


def read_tenants(path: Path) -> tuple[Tenant, ...]:
    """The tenants of a file. Raises `ConfigError`, which shows no token."""
    where = f"--tenants {path}"
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=list[_Entry])
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{where} cannot be read: {error}; it is a JSON list of objects with name, token and, where wanted,"
            " requests_per_min, max_rows, admin"
        ) from None
    names = [entry.name for entry in entries]
    if not entries or len(set(names)) < len(names) or len({entry.token for entry in entries}) < len(names):
        raise ConfigError(
            f"{where} is refused: it needs at least one tenant, each with its own name and token"
        )
    for entry in entries:
        if entry.requests_per_min < 1 or entry.max_rows < 1 or not entry.name.isidentifier():
            raise ConfigError(
                f"{where} is refused for {entry.name!r}: limits are at least 1, and a name has letters, digits and _"
            )
    return tuple(
        Tenant(
            entry.name,
            _digest(_checked(entry.token, f"the token of {entry.name!r} in {path}")),
            entry.requests_per_min,
            entry.max_rows,
            entry.admin,
        )
        for entry in entries
    )


def _checked(token: str, what: str) -> str:
    if not (8 <= len(token) <= 4096 and token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError(f"{what} is refused: a token is one word of 8 to 4096 printable ASCII characters")
    return token


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


@dataclass
class _Use:
    """What a tenant uses. `tokens`: requests that it may make at once, refilled with time."""

    tokens: float
    seen_s: float
    rows: int = 0
    bytes: int = 0


@dataclass
class Gate:
    """Lets tenants in, within their limits. `clock`: seconds. Without tenants, everybody is one."""

    tenants: Sequence[Tenant]
    clock: Callable[[], float]
    _uses: dict[str, _Use] = field(default_factory=dict)

    def tenant(self, authorization: str | None) -> Tenant:
        """Whose request it is, by the header. Raises `Refused` (401)."""
        if not self.tenants:
            return EVERYBODY
        scheme, _, token = (authorization or "").partition(" ")
        digest = _digest(token.strip())
        found = [one for one in self.tenants if hmac.compare_digest(one.digest, digest)]
        if scheme.lower() != "bearer" or not found:
            raise Refused(401, "this service needs its token: send the header 'Authorization: Bearer TOKEN'")
        return found[0]

    def count_request(self, tenant: Tenant) -> None:
        """Raises `Refused` (429) over `requests_per_min`; up to a tenth of a minute's may come at once."""
        use = self._use(tenant)
        now_s = self.clock()
        per_s = tenant.requests_per_min / 60
        use.tokens = min(_burst(tenant), use.tokens + (now_s - use.seen_s) * per_s)
        use.seen_s = now_s
        if use.tokens < 1:
            raise Refused(
                TOO_MANY,
                f"the tenant {tenant.name!r} is over its {tenant.requests_per_min} requests a minute",
                math.ceil((1 - use.tokens) / per_s),
            )
        use.tokens -= 1

    @contextmanager
    def holding_bytes(self, tenant: Tenant) -> Iterator[Callable[[int], None]]:
        """A function to call with the size of each part of a request; it raises `Refused` (429)."""
        use, held = self._use(tenant), 0

        def hold(size: int) -> None:
            nonlocal held
            if use.bytes + size > MAX_BYTES:
                raise Refused(
                    TOO_MANY, f"the tenant {tenant.name!r} has {use.bytes} of {MAX_BYTES} bytes in flight", 1
                )
            use.bytes += size
            held += size

        try:
            yield hold
        finally:
            use.bytes -= held

    @contextmanager
    def holding_rows(self, tenant: Tenant, rows: int) -> Iterator[None]:
        """Raises `Refused` (429; 413 where they could never be let in)."""
        use = self._use(tenant)
        if rows > tenant.max_rows:
            raise Refused(
                413,
                f"{rows} rows are refused: the tenant {tenant.name!r} may have {tenant.max_rows} in flight",
            )
        if use.rows + rows > tenant.max_rows:
            raise Refused(
                TOO_MANY,
                f"the tenant {tenant.name!r} has {use.rows} of its {tenant.max_rows} rows in flight; {rows} more are"
                " refused",
                1,
            )
        use.rows += rows
        try:
            yield
        finally:
            use.rows -= rows

    def _use(self, tenant: Tenant) -> _Use:
        return self._uses.setdefault(tenant.name, _Use(_burst(tenant), self.clock()))


def _burst(tenant: Tenant) -> float:
    return max(1.0, tenant.requests_per_min / 10)
