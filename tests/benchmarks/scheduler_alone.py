"""What the scheduler itself costs: completions per second, added time per request, memory over many completions.

Run it as a script. It prints a line for each measurement, writes a JSON file and exits with 1 if a limit is missed.

    throughput   workers that answer at once, on a real loop: completions per second of wall time, and of the CPU
                 time of the process; groups of 8, 8 workers with 64 requests in flight each
    added        one worker with 8 requests in flight that answers at once: wall time of the run per request, which
                 is an upper bound of what the scheduler adds to one
    memory       growth of the resident memory of the process after the first tenth of the completions
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from swift_rlx.backends import Capabilities, GenerationRequest, Health, OnProgress, unwatched
from swift_rlx.scheduler import IterableSource, RolloutConfig, RolloutScheduler
from swift_rlx.types import Completion, FinishReason, PolicyVersion, Prompt, Score

RESULT = Path(__file__).resolve().parent / "results" / "scheduler_alone.json"
MIN_PER_S = 5000.0
MAX_ADDED_MS = 1.0
MAX_GROWTH_MB = 8.0
BUSY = 0.8  # a run that uses its core less than this had to wait for others
BATCH, GROUP, TOKENS = 64, 8, 32


class InstantBackend:
    """Answers each request after one turn of the loop."""

    capabilities = Capabilities(keep=True)

    def __init__(self, name: str) -> None:
        self.name = name
        self._version = PolicyVersion()
        self._ids = np.zeros(TOKENS, dtype=np.int32)
        self._logprobs = np.zeros(TOKENS, dtype=np.float32)

    async def generate(self, request: GenerationRequest, on_progress: OnProgress = unwatched) -> Completion:
        await asyncio.sleep(0)
        steps = np.full(TOKENS, self._version.step, dtype=np.int32)
        return Completion(self._ids, self._logprobs, steps, FinishReason.STOP, worker=self.name)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Nothing is in flight for long."""

    async def publish(self, version: PolicyVersion, payload: object) -> None:
        self._version = version

    async def health(self) -> Health:
        return Health(self._version)

    async def close(self) -> None:
        """Nothing to free."""


async def score(prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
    return [Score(1.0)] * len(completions)


async def run(completions: int, workers: int, inflight: int, on_step: object = None) -> float:
    """Train until that many completions were trained; wall seconds."""
    ids = np.zeros(4, dtype=np.int32)
    prompts = IterableSource(Prompt(index, ids) for index in itertools.count())
    config = RolloutConfig(batch_groups=BATCH, group_size=GROUP, max_inflight=inflight)
    backends = [InstantBackend(f"worker-{number}") for number in range(workers)]
    begin = time.perf_counter()
    async with RolloutScheduler(config, backends, prompts, score) as scheduler:
        for step in range(completions // (BATCH * GROUP)):
            batch = await scheduler.next_batch()
            assert batch is not None
            assert len(batch.groups) == BATCH
            scheduler.publish(None)
            if callable(on_step):
                on_step(step)
        return time.perf_counter() - begin


def throughput(completions: int) -> dict[str, float]:
    """Completions per second."""
    cpu = time.process_time()
    wall = asyncio.run(run(completions, workers=8, inflight=64))
    cpu = time.process_time() - cpu
    done = completions // (BATCH * GROUP) * BATCH * GROUP
    return {"completions": done, "per_s": done / wall, "per_cpu_s": done / cpu}


def added(completions: int) -> dict[str, float]:
    """Milliseconds of wall time per request."""
    wall = asyncio.run(run(completions, workers=1, inflight=8))
    return {"ms_per_request": 1000 * wall / completions}


def memory(completions: int) -> dict[str, float]:
    """Growth of the resident memory in MB after the first tenth."""
    resident: list[float] = []
    steps = completions // (BATCH * GROUP)

    def note(step: int) -> None:
        if step % max(steps // 10, 1) == 0:
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            resident.append(pages * resource.getpagesize() / 2**20)

    asyncio.run(run(completions, workers=8, inflight=64, on_step=note))
    return {
        "completions": completions,
        "growth_mb": statistics.median(resident[-3:]) - resident[1],
        "resident_mb": resident[-1],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="What the rollout scheduler itself costs.")
    parser.add_argument("--completions", type=int, default=1_000_000, help="of the memory measurement")
    parser.add_argument(
        "--rounds", type=int, default=5, help="of the throughput measurement; the median counts"
    )
    parser.add_argument("--output", type=Path, default=RESULT, help="where the JSON file goes")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rounds = sorted(
        (throughput(min(options.completions, 51_200)) for _ in range(options.rounds)),
        key=lambda one: one["per_s"],
    )
    median = rounds[len(rounds) // 2]
    result = {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_at_start": round(load, 1),  # processes that want a core, this one not among them
        },
        "limits": {"per_s": MIN_PER_S, "added_ms": MAX_ADDED_MS, "growth_mb": MAX_GROWTH_MB},
        "throughput": median,
        "added": added(min(options.completions, 20_480)),
        "memory": memory(options.completions),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"throughput  {median['per_s']:,.0f} completions/s ({median['per_cpu_s']:,.0f} per CPU second)")
    if median["per_s"] < BUSY * median["per_cpu_s"]:
        print("the machine was busy with other work: wall times are inflated, measure again when it is idle")
    print(f"added       {result['added']['ms_per_request']:.3f} ms per request")
    print(
        f"memory      {result['memory']['growth_mb']:+.2f} MB over {options.completions:,} completions,"
        f" {result['memory']['resident_mb']:.0f} MB at the end"
    )
    return 0 if _is_within_limits(result) else 1


def _is_within_limits(result: dict[str, dict[str, float]]) -> bool:
    return (
        result["throughput"]["per_s"] >= MIN_PER_S
        and result["added"]["ms_per_request"] < MAX_ADDED_MS
        and abs(result["memory"]["growth_mb"]) < MAX_GROWTH_MB
    )


if __name__ == "__main__":
    sys.exit(main())
