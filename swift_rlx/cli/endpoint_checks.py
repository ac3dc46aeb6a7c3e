"""Findings about a rollout server: what it is, what it can do, and the command that starts one as needed."""

import asyncio
import os

from swift_rlx import __version__
from swift_rlx.backends.remote_commands import start_command
from swift_rlx.backends.remote_dialect import Ability, ServerFacts, ServerKind
from swift_rlx.backends.remote_endpoint import (
    KEY_VARIABLE,
    ApiKey,
    Endpoint,
    parse_endpoints,
    read_api_key,
    unused_proxies,
)
from swift_rlx.backends.remote_http import HttpClient
from swift_rlx.backends.remote_probe import identify
from swift_rlx.backends.vllm_contract import installed_version, is_for_accelerators
from swift_rlx.backends.weights import WeightKind
from swift_rlx.cli.checks import Check, Report, Section, fail, ok, warn
from swift_rlx.errors import BackendError, BackendUnfit

LIMIT_S = 60.0
PROBE_IDS = (3, 4, 5, 6, 7, 8, 9, 10)
"""Tokens that every vocabulary has."""
SOME_MODEL = "MODEL"


def endpoint_report(address: str) -> Report:
    """Ask the server at `address`. Raises `ConfigError` for what is no address, or no key."""
    [endpoint] = parse_endpoints([address])
    key = read_api_key(os.environ)
    checks: tuple[Check, ...]
    try:
        facts = asyncio.run(asyncio.wait_for(_facts(endpoint, key), LIMIT_S))
    except (BackendError, asyncio.TimeoutError, TimeoutError) as error:
        words = str(error) or f"it gave no answer within {LIMIT_S:g} s, as one that is paused"
        remedy = f"start one: {_command(ServerKind.VLLM, endpoint, SOME_MODEL, key)}"
        if isinstance(error, BackendUnfit):
            remedy = f"give its right address and key, or {remedy}"
        checks = (fail("server", words, remedy),)
    else:
        checks = _checks(endpoint, facts, key)
    return Report(
        __version__,
        (Section("endpoint", endpoint.url, (*checks, _key(key), *_ways(endpoint))),),
        subject=f"`--rollout_endpoints {endpoint.url}` can be used",
    )


async def _facts(endpoint: Endpoint, key: ApiKey | None) -> ServerFacts:
    client = HttpClient(endpoint, key)
    try:
        _, facts = await identify(client, PROBE_IDS, unpauses=False)
    finally:
        await client.close()
    return facts


def _checks(endpoint: Endpoint, facts: ServerFacts, key: ApiKey | None) -> tuple[Check, ...]:
    length = "" if facts.max_model_len is None else f", {facts.max_model_len} tokens in all"
    what = f"{facts.kind.value} {facts.version} with {facts.root}{length}"
    one_way = Ability.ADAPTERS not in facts.lacks or Ability.WEIGHTS not in facts.lacks
    command = _command(facts.kind, endpoint, facts.root, key, facts.version)
    return (
        ok("server", what, kind=facts.kind.value, version=facts.version, model=facts.root),
        *(_ability(ability, facts, is_needed=not one_way) for ability in Ability),
        *_openness(endpoint, facts),
        ok("command", f"one that can all of it: {command}", command=command),
    )


def _ability(ability: Ability, facts: ServerFacts, *, is_needed: bool) -> Check:
    """Either way to new weights is enough; filters are needed by those who use them."""
    change = facts.lacks.get(ability)
    if change is None:
        rank = facts.max_adapter_rank if ability is Ability.ADAPTERS else None
        return ok(ability.value, "yes" if rank is None else f"yes, up to rank {rank}")
    needed = {
        Ability.TOKENS: True,
        Ability.LOGPROBS: True,
        Ability.FILTERS: False,
        Ability.ADAPTERS: is_needed,
        Ability.WEIGHTS: is_needed,
    }
    return (fail if needed[ability] else warn)(ability.value, "no", change)


def _openness(endpoint: Endpoint, facts: ServerFacts) -> tuple[Check, ...]:
    if not facts.is_open or endpoint.is_local:
        return ()
    return (
        warn(
            "open routes",
            "whoever reaches it can change its weights: vLLM's development mode takes no key",
            "keep it in a private network",
        ),
    )


def _key(key: ApiKey | None) -> Check:
    if key is None:
        return ok("key", f"none is sent: {KEY_VARIABLE} is not set")
    return ok("key", "one is sent, and shown nowhere")


def _ways(endpoint: Endpoint) -> tuple[Check, ...]:
    checks = []
    if proxies := unused_proxies(endpoint, os.environ):
        checks.append(ok("proxy", f"{proxies} is set and not used: servers are reached directly"))
    if endpoint.is_encrypted:
        file = os.environ.get("SSL_CERT_FILE")
        trusted = (
            f"the authorities in {file}" if file else "the system's authorities (SSL_CERT_FILE names others)"
        )
        checks.append(ok("TLS", f"certificates are checked against {trusted}"))
    return tuple(checks)


def _command(kind: ServerKind, endpoint: Endpoint, model: str, key: ApiKey | None, version: str = "") -> str:
    """A server on this machine is taken for one of the vLLM that is installed here."""
    has_cpu_build = installed_version() is not None and not is_for_accelerators()
    on_cpu = "+cpu" in version or (endpoint.is_local and has_cpu_build)
    return start_command(kind, endpoint, model, tuple(WeightKind), has_key=key is not None, on_cpu=on_cpu)
