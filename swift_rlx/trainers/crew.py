"""Who generates: worker processes of our own, or servers that somebody else runs."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swift_rlx.backends import Backend, EngineSpec, WeightFiles
from swift_rlx.backends.remote_dialect import ServerNeeds
from swift_rlx.backends.remote_endpoint import ApiKey, Endpoint
from swift_rlx.backends.remote_gate import InflightLimits
from swift_rlx.backends.remote_requests import Decode
from swift_rlx.backends.remote_server import RemoteServer
from swift_rlx.backends.remote_start import start_servers
from swift_rlx.cluster import WorkerProcess
from swift_rlx.types import PolicyVersion


class Crew(Protocol):
    """The workers of a run, described before they are started."""

    @property
    def size(self) -> int:
        """How many."""

    async def start(self, version: PolicyVersion, first: WeightFiles) -> Sequence[Backend]:
        """Start them on these weights, in the loop that will use them.

        Raises what hinders it, with nothing left running.
        """


@dataclass(frozen=True)
class ProcessCrew:
    """One process of ours a description; `environments`: of each, laid over the trainer's own.

    `stall_limit_s`: how long an engine with requests may be without a word. Started without weights, the workers
    serve those of their descriptions.
    """

    specs: tuple[EngineSpec, ...]
    environments: tuple[dict[str, str], ...]
    run_directory: Path
    start_limit_s: float = 600.0
    stall_limit_s: float | None = None

    @property
    def size(self) -> int:
        return len(self.specs)

    async def start(self, version: PolicyVersion, first: WeightFiles | None) -> Sequence[WorkerProcess]:
        workers = [
            WorkerProcess(
                spec,
                name=f"worker-{number}",
                run_directory=self.run_directory,
                environment=environment,
                start_limit_s=self.start_limit_s,
                stall_limit_s=self.stall_limit_s,
            )
            for number, (spec, environment) in enumerate(zip(self.specs, self.environments, strict=True))
        ]
        try:
            await asyncio.gather(*(worker.start() for worker in workers))
            if first is not None:
                await asyncio.gather(*(worker.publish(version, first) for worker in workers))
        except BaseException:
            await close_all(workers)
            raise
        return workers


@dataclass(frozen=True)
class ServerCrew:
    """One server an endpoint. At the start one of them has to answer. `decode`: of the model that is trained."""

    endpoints: tuple[Endpoint, ...]
    needs: ServerNeeds
    key: ApiKey | None = None
    limits: InflightLimits | None = None
    decode: Decode | None = None

    @property
    def size(self) -> int:
        return len(self.endpoints)

    async def start(self, version: PolicyVersion, first: WeightFiles) -> Sequence[RemoteServer]:
        servers = [
            RemoteServer(one, self.needs, key=self.key, limits=self.limits, decode=self.decode)
            for one in self.endpoints
        ]
        try:
            await start_servers(servers, version, first)
        except BaseException:
            await close_all(servers)
            raise
        return servers


async def close_all(workers: Sequence[Backend]) -> None:
    """End them, whatever one of them raises."""
    await asyncio.gather(*(worker.close() for worker in workers), return_exceptions=True)
