"""Throughput of a reward service, with and without batches: a real service, worker processes, and a client.

Run it as a script; it takes half a minute. It prints a line for each measurement, writes a JSON file and exits with 1
if the goal is missed: batches score at least half as many rows again in a second.

The served reward costs what a small reward model does: 8 ms for a call, whatever it holds, and 0.25 ms for a row. Calls
bring groups of 8 rows, 32 of them at a time. Each round measures batches of at most 8 rows (one call), then of at most
64; what counts is the ratio of their rows per second within a round, which no other work of the machine can tilt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from swift_rlx.reward_service import Row, ServiceReward, parse_address

RESULT = Path(__file__).resolve().parent / "results" / "reward_service.json"
REPOSITORY = Path(__file__).resolve().parents[2]
MIN_GAIN = 1.5
GROUP, INFLIGHT = 8, 32
REWARD = """
import time
from swift_rlx import register_reward

@register_reward("like_a_model", version="1")
def like_a_model(completions: list[str], **columns) -> list[float]:
    time.sleep(0.008 + 0.00025 * len(completions))
    return [float(len(completion)) for completion in completions]
"""


def start_service(plugin: Path, batch_rows: int) -> tuple[subprocess.Popen[str], str]:
    """The process, and the address of its reward."""
    command = "from swift_rlx.cli.main import main; raise SystemExit(main())"
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", command, "reward", "serve", "--reward", "like_a_model", "--port", "0"),
            *("--batch-rows", str(batch_rows), "--external-plugins", str(plugin)),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("serving"):
        raise RuntimeError(f"the service did not start: {line!r}")
    return process, line.split()[-1]


async def rows_per_s(address: str, calls: int) -> float:
    """Of so many calls."""
    reward = ServiceReward(parse_address(address))
    await reward.describe()
    rows = [Row("x" * 200) for _ in range(GROUP)]
    slots = asyncio.Semaphore(INFLIGHT)

    async def one() -> None:
        async with slots:
            await reward.score(rows)

    await asyncio.gather(*(one() for _ in range(INFLIGHT)))
    begin_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(calls)))
    return calls * GROUP / (time.perf_counter() - begin_s)


def measure(rounds: int, calls: int) -> dict[str, Any]:
    """Medians over rounds, and the gain in each of them."""
    with tempfile.TemporaryDirectory() as folder:
        plugin = Path(folder, "like_a_model.py")
        plugin.write_text(REWARD, encoding="utf-8")
        services = [start_service(plugin, rows) for rows in (GROUP, 64)]
        try:
            pairs = [
                [asyncio.run(rows_per_s(address, calls)) for _, address in services] for _ in range(rounds)
            ]
        finally:
            for process, _ in services:
                process.terminate()
                process.wait(60)
    return {
        "rows_per_s_a_call_at_a_time": round(statistics.median(one for one, _ in pairs), 1),
        "rows_per_s_in_batches": round(statistics.median(other for _, other in pairs), 1),
        "gain": round(statistics.median(other / one for one, other in pairs), 3),
        "gains": [round(other / one, 3) for one, other in pairs],
    }


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    found = measure(options.rounds, options.calls)
    for name, value in found.items():
        print(f"{name:<32}{value!s:>10}")
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[2], 1),
    }
    sizes = {"rounds": options.rounds, "calls": options.calls, "rows_a_call": GROUP}
    result = {"machine": machine, "goals": {"gain": MIN_GAIN}, **sizes, **found}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if found["gain"] >= MIN_GAIN:
        return 0
    print(f"missed: batches score {found['gain']:.2f} times as many rows, the goal is {MIN_GAIN:g}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
