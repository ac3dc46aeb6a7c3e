"""What the journal of a run takes from the rest of its process, by rate of answers.

Run it as a script. It prints a line for each rate, writes a JSON file, and exits with 1 if the limit is missed.

Entries come as in a run: a prompt is admitted, its group of 8 answers (of 250 tokens on average, as in a run with two
rewards, under weights that changed in the middle) is scored, and a batch of 16 groups is picked up; each at its time.
The share is what `Journal.cost` says: time within calls, and processor time of the thread that writes, per second.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from swift_rlx.scheduler.journal import Journal, JournalCost
from swift_rlx.scheduler.journal_entries import Admitted, Entry, PickedUp, Scored
from swift_rlx.types import Completion, FinishReason, Prompt, RewardPart, Score, Trajectory, TrajectoryGroup

RESULT = Path(__file__).resolve().parent / "results" / "journal_cost.json"
RATES = (80, 400)
MAX_SHARE = 0.01
GROUP, BATCH, TOKENS = 8, 16, 250


def group(order: int, chance: np.random.Generator) -> TrajectoryGroup:
    """One as a run of 2 rewards makes it."""
    prompt = Prompt(order, np.zeros(4, np.int32))
    return TrajectoryGroup(
        prompt, order, tuple(_trajectory(prompt, member, chance) for member in range(GROUP))
    )


def _trajectory(prompt: Prompt, member: int, chance: np.random.Generator) -> Trajectory:
    length = int(chance.integers(1, 2 * TOKENS))
    completion = Completion(
        token_ids=chance.integers(0, 50_000, length, np.int32),
        logprobs=-chance.random(length, np.float32),
        policy_steps=np.repeat(
            np.int32([prompt.index, prompt.index + 1]), (length // 2, length - length // 2)
        ),
        finish_reason=FinishReason.STOP,
        worker="worker-0",
        submit_s=1.5,
        start_s=1.6,
        first_token_s=1.7,
        finish_s=2.5,
    )
    parts = (RewardPart("accuracy", float(member % 2)), RewardPart("format", 0.5, "1.0"))
    return Trajectory(prompt, member, completion, Score(float(member % 2) + 0.5, parts), 2.6)


def entries(num_groups: int, chance: np.random.Generator) -> Iterator[tuple[float, Entry]]:
    """Each with its time, in groups since the begin."""
    for order in range(num_groups):
        yield order, Admitted(order, 0, order)
        yield order + 0.5, Scored(group(order, chance))
        if order % BATCH == BATCH - 1:
            orders = tuple(range(order - BATCH + 1, order + 1))
            yield order + 0.6, PickedUp(order // BATCH, orders, 3, False)


def measure(answers_per_s: float, seconds: float, directory: Path) -> JournalCost:
    """The cost of a journal that gets so many answers a second."""
    groups_per_s = answers_per_s / GROUP
    plan = list(entries(int(groups_per_s * seconds), np.random.default_rng(7)))
    journal = Journal(directory)
    journal.cut()
    begin = time.perf_counter()
    for at, entry in plan:
        time.sleep(max(begin + at / groups_per_s - time.perf_counter(), 0))
        journal.add(entry)
    journal.flush()
    cost = journal.cost()
    journal.close()
    return cost


def main() -> int:
    parser = argparse.ArgumentParser(description="What the journal of a run costs.")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of measurements; the median counts")
    parser.add_argument(
        "--directory", help="where the journal is written; default: the one for temporary files"
    )
    parser.add_argument("--output", type=Path, default=RESULT, help="where the JSON file goes")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    measured = []
    with tempfile.TemporaryDirectory(dir=options.directory) as place:
        measure(RATES[-1], 1.0, Path(place))  # what a trainer has imported long ago
    for rate in RATES:
        with tempfile.TemporaryDirectory(dir=options.directory) as place:
            costs = [measure(rate, options.seconds, Path(place, str(n))) for n in range(options.rounds)]
        median = sorted(costs, key=lambda cost: cost.share)[len(costs) // 2]
        answers = rate // GROUP * GROUP * options.seconds
        measured.append(
            {
                "answers_per_s": rate,
                "share": median.share,
                "us_per_answer": 1e6 * statistics.median(cost.seconds for cost in costs) / answers,
                "bytes_per_answer": median.num_bytes / answers,
                "entries": median.entries,
            }
        )
        print(
            f"{rate:4d} answers/s  {100 * median.share:.2f} % of the time,"
            f" {measured[-1]['us_per_answer']:.0f} us and {measured[-1]['bytes_per_answer']:.0f} bytes an answer"
        )
    result = {
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_at_start": round(load, 1),  # processes that want a core, this one not among them
        },
        "tokens_per_answer": TOKENS,
        "seconds": options.seconds,
        "limits": {"share": MAX_SHARE},
        "rates": measured,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if all(one["share"] < MAX_SHARE for one in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
