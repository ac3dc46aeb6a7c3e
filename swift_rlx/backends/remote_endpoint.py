"""Where rollout servers are, and the key that opens them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from swift_rlx.errors import ConfigError

KEY_VARIABLE = "SWIFT_RLX_API_KEY"
FILE_VARIABLE = "SWIFT_RLX_API_KEY_FILE"
_PORTS = {"http": 80, "https": 443}
_MAX_KEY_CHARACTERS = 4096
_OPENAI = "/v1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server. `url` has its port and no slash at the end, such as `https://gpu7:8000/vllm`."""

    url: str
    host: str
    port: int

    @property
    def is_local(self) -> bool:
        """Whether it is surely on this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_encrypted(self) -> bool:
        """Whether it is reached by TLS."""
        return self.url.startswith("https:")


def parse_endpoints(texts: Sequence[str]) -> tuple[Endpoint, ...]:
    """The servers of `--rollout_endpoints`.

    Raises `ConfigError` for what is no address of a server, for one with a password, for that of a server's OpenAI
    interface, and for one that is named twice.
    """
    found = [parse_endpoint(text) for text in texts]
    for one in found:
        if one.url.endswith(_OPENAI):
            raise ConfigError(
                f"--rollout_endpoints {one.url} is refused: this is the OpenAI interface of a server, and more of it is"
                f" used than that; give the address of the server itself, {one.url.removesuffix(_OPENAI)}"
            )
    for number, one in enumerate(found):
        if one in found[:number]:
            raise ConfigError(
                f"--rollout_endpoints names {one.url} twice; weights would reach it twice, so name each server once"
            )
    return tuple(found)


def parse_endpoint(
    text: str, flag: str = "--rollout_endpoints", key_variable: str = KEY_VARIABLE
) -> Endpoint:
    """One server. `flag`, `key_variable`: named in errors. Raises `ConfigError`."""
    try:
        parts = urlsplit(text)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"{flag} holds a name or password for {host}, which would stand in logs: put the server's key into the"
            f" variable {key_variable}, or its file into {key_variable}_FILE"
        )
    is_plain = text.isascii() and text.isprintable() and " " not in text
    if parts.scheme not in _PORTS or not host or not is_plain or parts.query or parts.fragment:
        raise ConfigError(
            f"{flag} {text!r} is refused: give the address of a server, such as http://gpu7:8000"
        )
    port = port or _PORTS[parts.scheme]
    shown = f"[{host}]" if ":" in host else host
    return Endpoint(f"{parts.scheme}://{shown}:{port}{parts.path.rstrip('/')}", host, port)


class ApiKey:
    """A secret: whatever prints the object shows stars. `source`: where it comes from, in words."""

    __slots__ = ("_text", "source")

    def __init__(self, text: str, source: str = KEY_VARIABLE) -> None:
        self._text = text
        self.source = source

    @property
    def headers(self) -> dict[str, str]:
        """What a request carries."""
        return {"Authorization": f"Bearer {self._text}"}

    def redacted(self, text: str) -> str:
        """`text` with stars in the place of the key, which a server may echo."""
        return text.replace(self._text, "***")

    def __repr__(self) -> str:
        return "ApiKey(***)"


def read_api_key(environment: Mapping[str, str], variable: str = KEY_VARIABLE) -> ApiKey | None:
    """The key for all servers, from a variable or from the file that `<variable>_FILE` names; None: they have none.

    Raises `ConfigError`, which does not show the key, where both are given, or what is there is no key.
    """
    file_variable = f"{variable}_FILE"
    text, path = environment.get(variable), environment.get(file_variable)
    if text and path:
        raise ConfigError(f"{variable} and {file_variable} are both set; unset one of them")
    where = variable
    if path:
        where = f"{file_variable} {path}"
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where} cannot be read: {error}; name a file that holds the key") from None
    if not text:
        return None
    key = text.strip()
    if not (0 < len(key) <= _MAX_KEY_CHARACTERS and key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(f"{where} is refused: a key is one word of printable ASCII characters")
    return ApiKey(key, where)


def unused_proxies(endpoint: Endpoint, environment: Mapping[str, str]) -> str:
    """Variables that name a proxy for such an address, joined; servers are reached directly all the same."""
    scheme = "https" if endpoint.is_encrypted else "http"
    names = (f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY")
    return ", ".join(name for name in names if environment.get(name))
