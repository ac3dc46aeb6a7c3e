"""`swift-rlx reward serve`: rewards behind HTTP, with a version."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import math
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from swift_rlx.errors import ConfigError

if TYPE_CHECKING:
    from swift_rlx.reward_service.service import RewardService, ServiceConfig
    from swift_rlx.reward_service.tenants import Tenant

HELP = "serve rewards over HTTP until Ctrl-C or SIGTERM"
EXAMPLE = """\
examples:
    swift-rlx reward serve --reward comment_bonus format_length --port 8101
    swift-rlx reward serve --reward helpful=model:/models/rm_v3 --version v3 --workers 2 --port 8101
    swift-rlx reward serve --reward 'safe=wco(model:/models/a, model:/models/b)' --version v1
    SWIFT_RLX_REWARD_TOKEN_FILE=/run/secrets/token swift-rlx reward serve --reward helpful --host 0.0.0.0

A run uses it as --reward_funcs http://127.0.0.1:8101/helpful@v3. The token of clients comes from the variable
SWIFT_RLX_REWARD_KEY or the file that SWIFT_RLX_REWARD_KEY_FILE names.
"""
DEFAULT_LOADER = "swift_rlx.integration.reward_model:load"
MS_SWIFT_REWARDS = "swift_rlx.integration.reward_names:find_reward"
_NEEDED = ("fastapi", "uvicorn", "prometheus_client")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is served, where, by how many, to whom."""
    add = parser.add_argument
    add(
        "--reward",
        nargs="+",
        required=True,
        metavar="SOURCE",
        help="NAME, NAME=model:PATH, or NAME=JOIN(SOURCE, ...)",
    )
    add(
        "--version",
        default="",
        help="of all of them (default: the reward's or its package's, or a digest of its file or the model's files)",
    )
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", type=int, default=8101, help="0: any that is free (default %(default)s)")
    add(
        "--workers", type=int, default=1, help="processes that score; POST /v1/workers changes it (default 1)"
    )
    add("--batch-rows", type=int, default=32, help="rows scored together at most (default %(default)s)")
    add(
        "--batch-window-s",
        type=float,
        default=0.01,
        help="how long a row waits for others (default %(default)s)",
    )
    add(
        "--batch-limit-s",
        type=float,
        default=60.0,
        help="after which a worker is replaced (default %(default)s)",
    )
    add(
        "--max-queued-rows",
        type=int,
        default=65536,
        help="that may wait, of all tenants (default %(default)s)",
    )
    add("--tenants", type=Path, help="JSON file with names, tokens and limits; instead of one token")
    add("--external-plugins", nargs="+", default=[], metavar="FILE", help="files that register rewards")
    add(
        "--loader",
        default=DEFAULT_LOADER,
        help="MODULE:FUNCTION for reward models (default: as ms-swift loads them)",
    )
    add("--loader-options", default="{}", help='JSON object for it, such as \'{"template": "qwen2_5"}\'')
    add("--certificate", help="file, for https")
    add("--private-key", help="file, for https")


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"reward serve needs {', '.join(missing)}; install them with: pip install 'swift-rlx[serve]'"
        )
    from swift_rlx.reward_service.serving import Listening, serve

    _check_numbers(options)
    config = _config(options)
    if options.host not in ("127.0.0.1", "localhost", "::1") and not config.tenants:
        raise ConfigError(
            f"--host {options.host} without a token is refused, as anybody who reaches it could use it: put a token"
            " into SWIFT_RLX_REWARD_TOKEN, its file into SWIFT_RLX_REWARD_TOKEN_FILE, or give --tenants"
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until uvicorn takes it, as Ctrl-C
    at = Listening(options.host, options.port, options.certificate, options.private_key)
    asyncio.run(serve(config, at, _say))
    return 0


def _say(url: str, local_url: str, service: RewardService) -> None:
    # uvicorn raises the signal that stopped it once more at its end; it has been obeyed by then.
    signal.signal(signal.SIGTERM, lambda *_: None)
    for offer in service.pool.offers:
        print(
            f"serving {offer.name}, version {offer.version}: --reward_funcs {url}/{offer.name}@{offer.version}"
        )
    here = "" if local_url == url else f" ({local_url} on this machine)"
    print(f"ready at {url}{here}; health at {url}/health, metrics at {url}/metrics", flush=True)


def _check_numbers(options: argparse.Namespace) -> None:
    from swift_rlx.reward_service.service import MAX_WORKERS

    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port} is refused: use 1 to 65535, or 0 for any that is free")
    if not 1 <= options.workers <= MAX_WORKERS:
        raise ConfigError(f"--workers {options.workers} is refused: use 1 to {MAX_WORKERS}")
    for flag, rows in (("--batch-rows", options.batch_rows), ("--max-queued-rows", options.max_queued_rows)):
        if rows < 1:
            raise ConfigError(f"{flag} {rows} is refused: use at least 1")
    if not 0 <= options.batch_window_s < math.inf:
        raise ConfigError(f"--batch-window-s {options.batch_window_s:g} is refused: use seconds, 0 or more")
    if not 0 < options.batch_limit_s < math.inf:
        raise ConfigError(f"--batch-limit-s {options.batch_limit_s:g} is refused: use seconds, more than 0")


def _config(options: argparse.Namespace) -> ServiceConfig:
    import msgspec

    from swift_rlx.integration.stock_reward_names import stock_reward_names
    from swift_rlx.reward_service.frames import Setup
    from swift_rlx.reward_service.pool import Batching
    from swift_rlx.reward_service.service import ServiceConfig
    from swift_rlx.reward_service.source_text import check_loader, parse_source

    names = [parse_source(text).name for text in options.reward]
    if len(set(names)) < len(names):
        raise ConfigError(f"--reward {' '.join(options.reward)} is refused: it names a reward twice")
    for path in options.external_plugins:
        if not Path(path).is_file():
            raise ConfigError(f"--external-plugins {path} is refused: there is no such file")
    if (options.certificate is None) != (options.private_key is None):
        raise ConfigError("--certificate and --private-key belong together; give both for https, or neither")
    try:
        loader_options = msgspec.json.decode(options.loader_options, type=dict[str, str])
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(
            f"--loader-options {options.loader_options} is refused: {error}; give a JSON object"
        ) from None
    check_loader(options.loader)
    setup = Setup(
        options.reward,
        options.version,
        options.loader,
        loader_options,
        sys.path,
        options.external_plugins,
        *((MS_SWIFT_REWARDS, stock_reward_names()) if _has_ms_swift() else ()),
    )
    batching = Batching(options.batch_rows, options.batch_window_s, options.batch_limit_s)
    return ServiceConfig(setup, options.workers, batching, _tenants(options), options.max_queued_rows)


def _has_ms_swift() -> bool:
    try:
        return bool(importlib.metadata.version("ms-swift"))
    except importlib.metadata.PackageNotFoundError:
        return False


def _tenants(options: argparse.Namespace) -> tuple[Tenant, ...]:
    from swift_rlx.reward_service.tenants import read_tenants, token_tenant

    alone = token_tenant(os.environ)
    if options.tenants is None:
        return () if alone is None else (alone,)
    if alone is not None:
        raise ConfigError(
            "--tenants and a token in the environment are both given; a service has one or the other"
        )
    return read_tenants(options.tenants)
