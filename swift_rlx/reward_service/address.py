"""The address of a served reward, as `--reward_funcs` takes it.

http://127.0.0.1:8101/helpful                     the version that is served; another one later is noticed and used
http://127.0.0.1:8101/helpful@v3                  version v3 and no other
http://a:8101,b:8101/helpful@v3                   two replicas
http://a:8101,b:8101/helpful@v3,v4                v3 until no replica has it any more, then v4, without a stop
'http://a:8101,c:8101/helpful@v3,v4?shadow=v4'    the same; v4 scores the same rows beside v3 until then, unused
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from swift_rlx.backends.remote_endpoint import Endpoint, parse_endpoint
from swift_rlx.errors import ConfigError

KEY_VARIABLE = "SWIFT_RLX_REWARD_KEY"
"""Variable with the token that a client sends; `<this>_FILE` names a file with it."""
_ADDRESS = re.compile(r"(https?)://([^/]+)/([\w.-]+)(?:@([\w.+,:-]+))?(?:\?shadow=([\w.+:-]+))?")


@dataclass(frozen=True)
class ServiceAddress:
    """`versions`: those that may be used, in order; empty: any. `shadow`: scored but not used; empty: none."""

    name: str
    endpoints: tuple[Endpoint, ...]
    versions: tuple[str, ...] = ()
    shadow: str = ""


def parse_address(text: str) -> ServiceAddress:
    """Raises `ConfigError`."""
    flag = "--reward_funcs"
    found = _ADDRESS.fullmatch(text)
    if found is None:
        host = unquote(text.partition("://")[2].rpartition("@")[0])
        shown = text if ":" not in host.partition("/")[0].rpartition("@")[0] else "with a password"
        raise ConfigError(
            f"{flag} {shown} is refused as the address of a served reward: it is http://HOST:PORT[,HOST:PORT]/NAME,"
            " with @VERSION[,VERSION] and ?shadow=VERSION where wanted"
        )
    scheme, hosts, name, listed, shadow = found.groups()
    endpoints = tuple(
        parse_endpoint(f"{scheme}://{host.removeprefix(scheme + '://')}", flag, KEY_VARIABLE)
        for host in hosts.split(",")
    )
    versions = tuple(listed.split(",")) if listed else ()
    if len(set(endpoints)) < len(endpoints) or len(set(versions)) < len(versions) or not all(versions):
        raise ConfigError(f"{flag} {text} is refused: name each replica and each version once")
    if shadow is not None and shadow in versions[:1]:
        raise ConfigError(f"{flag} {text} is refused: the version in use cannot be its own shadow")
    return ServiceAddress(name, endpoints, versions, shadow or "")
