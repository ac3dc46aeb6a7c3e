"""Rollout servers behind stand-ins, for tests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from stand_in_server import VOCABULARY, StandIn, running
from stand_in_sglang import StandInSglang
from stand_in_vllm import StandInVllm
from worker_runs import PROBE_IDS

from swift_rlx.backends import EngineSpec, GenerationRequest, Probe, WeightFiles, WeightKind
from swift_rlx.backends.remote_dialect import ServerNeeds
from swift_rlx.backends.remote_server import RemoteServer
from swift_rlx.testing.fake_engine import FakeEngine, save_fake_weights
from swift_rlx.types import PolicyVersion, Prompt, SamplingParams

Result = TypeVar("Result")
FULL, ADAPTER = WeightKind.FULL, WeightKind.ADAPTER
START = PolicyVersion(0, 0)
LIMIT_S = 60
SERVERS = [(StandInVllm, FULL), (StandInVllm, ADAPTER), (StandInSglang, FULL), (StandInSglang, ADAPTER)]
each_server = pytest.mark.parametrize(
    ("kind", "what"), SERVERS, ids=lambda one: getattr(one, "__name__", str(one))
)
_numbers = itertools.count()


def needs(kind: WeightKind, **changes: Any) -> ServerNeeds:
    """Of a run on 16 tokens that publishes weights of this kind."""
    given = {"vocabulary": VOCABULARY, "keeps": kind is FULL, "probe_ids": tuple(range(3, 9))}
    return ServerNeeds(kind, **(given | changes))


def weights(folder: Path, seed: int, kind: WeightKind = FULL, *, probe_of: int | None = None) -> WeightFiles:
    """Weights made from `seed`, with the probe of these or, to be caught, of others."""
    place, other = folder / f"weights-{seed}", folder / f"weights-{seed if probe_of is None else probe_of}"
    save_fake_weights(place, seed)
    save_fake_weights(other, seed if probe_of is None else probe_of)
    scores = asyncio.run(FakeEngine(EngineSpec("fake", str(other))).logprobs(PROBE_IDS))
    return WeightFiles(kind, str(place), Probe(PROBE_IDS, scores, 1e-4))


def request(*ids: int, name: str = "", index: int = 0, **sampling: Any) -> GenerationRequest:
    """For a prompt of these tokens; eight tokens unless `sampling` says otherwise."""
    prompt = Prompt(index, np.array(ids or (1, 2, 3), np.int32))
    return GenerationRequest(
        name or f"r{next(_numbers)}",
        prompt,
        0,
        SamplingParams(**({"max_tokens": 8} | sampling)),
        submit_s=0.0,
    )


async def started(stand_in: StandIn, files: WeightFiles, **options: Any) -> RemoteServer:
    """A client of a server that listens, which has been given weights."""
    changes = {name: options.pop(name) for name in ("sampling", "max_adapter_rank") if name in options}
    server = RemoteServer(stand_in.endpoint, needs(files.kind, keeps=False, **changes), **options)
    await server.start()
    await server.publish(START, files)
    return server


def run(stand_ins: StandIn | list[StandIn], test: Coroutine[Any, Any, Result]) -> Result:
    """The result of a test whose servers listen meanwhile."""
    servers = stand_ins if isinstance(stand_ins, list) else [stand_ins]

    async def go() -> Result:
        async with running(*servers):
            return await asyncio.wait_for(test, LIMIT_S)

    return asyncio.run(go())
