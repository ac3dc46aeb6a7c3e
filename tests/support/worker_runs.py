"""Worker processes with the fake engine, for tests."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np

from swift_rlx.backends import EngineSpec, GenerationRequest, Probe, WeightFiles, WeightKind
from swift_rlx.cluster import WorkerProcess
from swift_rlx.testing.fake_engine import FakeEngine, save_fake_weights
from swift_rlx.types import Prompt, SamplingParams

FAKE = "swift_rlx.testing.fake_engine:create"
PROBE_IDS = np.arange(8, dtype=np.int32)
LIMIT_S = 60.0
"""For what a test does with a worker."""


def spec(folder: Path, **options) -> EngineSpec:
    """The fake engine with 16 tokens and its weights in `folder`."""
    save_fake_weights(folder / "model", 0)
    return EngineSpec(FAKE, str(folder / "model"), max_model_len=200, options=options)


def worker(folder: Path, /, name: str = "worker-0", start_limit_s: float = 30.0, **changes) -> WorkerProcess:
    """Not started yet. Options of the engine and arguments of WorkerProcess by name."""
    own = {"silence_limit_s", "stall_limit_s", "close_grace_s", "environment"} & changes.keys()
    arguments = {key: changes.pop(key) for key in own}
    return WorkerProcess(
        spec(folder, **changes), run_directory=folder, name=name, start_limit_s=start_limit_s, **arguments
    )


def request(first: int = 1, number: int = 0, max_tokens: int = 5, seed: int | None = None):
    """For a prompt of two tokens, the first of which can make the engine misbehave."""
    return GenerationRequest(
        f"r{number}",
        Prompt(number, np.array([first, 2], np.int32)),
        0,
        SamplingParams(max_tokens=max_tokens, seed=number if seed is None else seed),
    )


def weights(folder: Path, seed: int, *, probe_of: int | None = None) -> WeightFiles:
    """Weights made from `seed`, with the probe of these or, to be caught, of others."""
    place = folder / f"weights-{seed}"
    save_fake_weights(place, seed)
    other = folder / f"weights-{seed if probe_of is None else probe_of}"
    save_fake_weights(other, seed if probe_of is None else probe_of)
    engine = FakeEngine(EngineSpec(FAKE, str(other)))
    return WeightFiles(
        WeightKind.FULL, str(place), Probe(PROBE_IDS, asyncio.run(engine.logprobs(PROBE_IDS)), 1e-4)
    )


async def until(condition, limit_s: float = 15.0) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        await asyncio.sleep(0.01)


def end_of(pid: int) -> str:
    """The state letter of a process, '' when there is none."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def run(backend, body):
    """Start, run the body, close; nothing of the worker may be left."""

    async def main():
        try:
            await backend.start()
            return await asyncio.wait_for(body(), LIMIT_S)
        finally:
            await backend.close()

    result = asyncio.run(main())
    assert end_of(backend.pid) == ""
    return result
