"""Servers at the start of a run: one has to answer, the others may come later; what cannot work is refused at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from swift_rlx.backends.remote_dialect import ServerFacts
from swift_rlx.backends.remote_endpoint import ApiKey, Endpoint
from swift_rlx.backends.remote_http import HttpClient
from swift_rlx.backends.remote_probe import identify, recognize
from swift_rlx.backends.remote_server import RemoteServer
from swift_rlx.backends.weights import WeightFiles
from swift_rlx.errors import BackendError, BackendTimeout, BackendUnavailable, BackendUnfit, ConfigError
from swift_rlx.types import PolicyVersion

Result = TypeVar("Result")
logger = logging.getLogger("swift_rlx")

START_LIMIT_S = 60.0
"""How long the first server may take to answer."""
OTHERS_S = 5.0
"""How long the others may take from then on."""
AGAIN_S = 1.0
PUBLISH_LIMIT_S = 300.0


async def survey(
    endpoints: Sequence[Endpoint],
    key: ApiKey | None,
    probe_ids: tuple[int, ...],
    *,
    limit_s: float = START_LIMIT_S,
    others_s: float = OTHERS_S,
) -> dict[str, ServerFacts]:
    """What the servers that answer are, by URL. Raises as `first_answers`."""

    def asking(endpoint: Endpoint) -> Callable[[], Awaitable[ServerFacts]]:
        async def ask() -> ServerFacts:
            client = HttpClient(endpoint, key)
            try:
                _, facts = await identify(client, probe_ids)
            finally:
                await client.close()
            return facts

        return ask

    return await first_answers({one.url: asking(one) for one in endpoints}, limit_s, others_s)


async def refuse_unfit(
    endpoints: Sequence[Endpoint], key: ApiKey | None, *, limit_s: float = OTHERS_S
) -> None:
    """Raise `ConfigError` for a server that is there and wants another key, or is none that can be used.

    One that does not answer within `limit_s` may be up in time for the start, which asks again, and for more.
    """

    async def ask(endpoint: Endpoint) -> None:
        client = HttpClient(endpoint, key)
        try:
            await asyncio.wait_for(recognize(client), limit_s)
        except BackendUnfit as error:
            raise ConfigError(str(error)) from error
        except (BackendError, asyncio.TimeoutError, TimeoutError):
            return
        finally:
            await client.close()

    await asyncio.gather(*map(ask, endpoints))


async def start_servers(
    servers: Sequence[RemoteServer],
    version: PolicyVersion,
    files: WeightFiles,
    *,
    limit_s: float = START_LIMIT_S,
    others_s: float = OTHERS_S,
) -> None:
    """Start them and give them their first weights; those that do not answer are left to the scheduler.

    Raises as `first_answers`, `WeightMismatch` where one runs another model, and the error of the first one where none
    takes the weights.
    """
    started = await first_answers({one.name: one.start for one in servers}, limit_s, others_s)
    there = [one for one in servers if one.name in started]
    giving = [asyncio.wait_for(one.publish(version, files), PUBLISH_LIMIT_S) for one in there]
    errors = {}
    for one, result in zip(there, await asyncio.gather(*giving, return_exceptions=True), strict=True):
        if isinstance(result, (asyncio.TimeoutError, TimeoutError)) and not isinstance(result, BackendError):
            result = BackendTimeout(f"{one.name} did not take weights within {PUBLISH_LIMIT_S:g} s")
        if isinstance(result, BackendError):
            errors[one.name] = result
        elif isinstance(result, BaseException):
            raise result
    for name, error in errors.items():
        if len(errors) == len(there):
            raise error
        logger.warning(f"the run starts without {name}, which did not take its first weights: {error}")


async def first_answers(
    calls: Mapping[str, Callable[[], Awaitable[Result]]],
    limit_s: float = START_LIMIT_S,
    others_s: float = OTHERS_S,
) -> dict[str, Result]:
    """The results of those that answer, by name; a call that fails is made again.

    Returns when all have answered, or `others_s` after the first one. Raises `ConfigError` for a server that is there
    and unfit, and `BackendUnavailable` where none answers within `limit_s`.
    """
    last: dict[str, str] = {}

    async def until_it_answers(name: str, call: Callable[[], Awaitable[Result]]) -> Result:
        while True:
            try:
                return await call()
            except BackendUnfit as error:
                raise ConfigError(str(error)) from error
            except BackendError as error:
                if name not in last:
                    logger.info(f"waiting for {name}: {error}")
                last[name] = str(error)
            await asyncio.sleep(AGAIN_S)

    loop = asyncio.get_running_loop()
    tasks = {name: loop.create_task(until_it_answers(name, call)) for name, call in calls.items()}
    pending, deadline = set(tasks.values()), loop.time() + limit_s
    try:
        while pending and (left := deadline - loop.time()) > 0:
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if done:
                deadline = min(deadline, loop.time() + others_s)
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    missing = {name: last.get(name, "it gives no answer") for name, task in tasks.items() if task in pending}
    if len(missing) == len(tasks):
        raise BackendUnavailable(
            f"no rollout server answered within {limit_s:g} s: {'; '.join(missing.values())}"
        )
    for name, error in missing.items():
        logger.warning(f"the run starts without {name} and takes it in once it answers: {error}")
    return {name: task.result() for name, task in tasks.items() if task not in pending}
