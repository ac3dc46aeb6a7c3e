"""A trainer that is killed leaves none of vLLM's processes and nothing in shared memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from vllm_runs import save_model

from swift_rlx.cluster.guardian import members

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

TRAINER = """
import asyncio, sys
from pathlib import Path
import numpy as np
from swift_rlx.backends import EngineSpec, GenerationRequest
from swift_rlx.backends.vllm_environment import environment
from swift_rlx.cluster import WorkerProcess
from swift_rlx.types import Prompt, SamplingParams

async def main(model):
    spec = EngineSpec(name="vllm", model=model, max_model_len=256, max_inflight=8)
    worker = WorkerProcess(spec, run_directory=Path(model).parent, environment=environment(spec))
    await worker.start()
    numbers = iter(range(10**6))
    async def answer():
        prompt = Prompt(0, np.arange(20, 40, dtype=np.int32))
        await worker.generate(GenerationRequest(f"r{next(numbers)}", prompt, 0, SamplingParams(max_tokens=200)))
    await answer()
    print(worker.pid, flush=True)
    while True:
        await asyncio.gather(*(answer() for _ in range(4)))

asyncio.run(main(sys.argv[1]))
"""


def mapped(processes: set[int]) -> set[Path]:
    """Files in shared memory that these processes use."""
    lines = [line for one in processes for line in Path(f"/proc/{one}/maps").read_text().splitlines()]
    found = {Path(line[line.index("/dev/shm/") :]) for line in lines if "/dev/shm/" in line}
    return {path for path in found if path.exists()}


def test_nothing_of_vllm_outlives_a_killed_trainer(tmp_path: Path):
    model = save_model(tmp_path / "model", tied=True)
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(model)], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    group = int(trainer.stdout.readline())
    assert len(members(group)) >= 3  # ours, EngineCore, Worker
    segments = mapped(members(group))
    assert segments
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    until = time.monotonic() + 10
    while (members(group) or any(map(Path.exists, segments))) and time.monotonic() < until:
        time.sleep(0.1)
    assert not members(group)
    assert not any(map(Path.exists, segments))
