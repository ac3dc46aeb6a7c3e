"""Runs a reward service on a port until it is told to stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn

from swift_rlx.errors import ConfigError
from swift_rlx.reward_service.app import build_app
from swift_rlx.reward_service.service import RewardService, ServiceConfig

GRACE_S = 30
"""How long requests may go on after the service was told to stop."""


OnReady = Callable[[str, str, RewardService], None]
"""Called with the address for other machines, the one for this machine, and the service."""


@dataclass(frozen=True)
class Listening:
    """Where it listens; port 0: any that is free. `certificate`, `private_key`: files, for TLS."""

    host: str = "127.0.0.1"
    port: int = 0
    certificate: str | None = None
    private_key: str | None = None


async def serve(config: ServiceConfig, at: Listening, on_ready: OnReady) -> None:
    """Serve until SIGINT or SIGTERM; requests that were let in are answered first, for up to `GRACE_S` seconds.

    `on_ready`: called once a worker is ready and the port is open. Raises `ConfigError` where the port
    cannot be had, `PluginError` where the rewards cannot be built.
    """
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    try:
        listener = socket.create_server((at.host, at.port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(
            f"port {at.port} of {at.host} cannot be had: {error.strerror}; choose another --port"
        ) from error
    with listener:
        service = RewardService(config)
        await service.start()
        server = uvicorn.Server(
            uvicorn.Config(
                build_app(service),
                log_level="warning",
                access_log=False,
                server_header=False,
                ssl_certfile=at.certificate,
                ssl_keyfile=at.private_key,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        scheme = "https" if at.certificate else "http"
        port = listener.getsockname()[1]
        url, local_url = (f"{scheme}://{host}:{port}" for host in hosts_in_addresses(at.host))
        on_ready(url, local_url, service)
        try:
            await server.serve(sockets=[listener])
        finally:
            await asyncio.shield(service.close())


def hosts_in_addresses(host: str) -> tuple[str, str]:
    """What other machines and what this one put into the address of a service that listens on `host`.

    Where that is all interfaces, the first is the name that this machine has for itself.
    """
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname(), "[::1]" if host == "::" else "127.0.0.1"
    shown = f"[{host}]" if ":" in host else host
    return shown, shown
