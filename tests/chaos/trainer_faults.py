"""The trainer is killed at random moments of its life, and the command is given again with the newest checkpoint."""

from __future__ import annotations

import random
import time

from fault_table import FaultRow
from swift_run import SwiftRun
from worker_faults import END_S, START_S

NAME = "kill -9 of the trainer"
EARLY = 0.1
"""Share of the kills that may fall into the start, when nothing has been trained."""
EARLY_S = 20.0


def killed_run(run: SwiftRun, tries: int, life_s: float, chance: random.Random, row: FaultRow) -> int:
    """One run that is killed up to so many times, and then ends; how often it was.

    `life_s`: how long a start trains on average before it is killed.
    """
    kills = 0
    with run:
        run.launch()
        while kills < tries and _wait_for_a_moment(run, life_s, chance):
            if not run.kill_trainer():
                continue  # the command has not come that far
            kills += 1
            row.note_leftovers(run)
            run.launch()
        status = run.wait_end(END_S)
        row.tries += kills
        row.recovered_s += recoveries(run)
        row.conclude(run, status)
    return kills


def _wait_for_a_moment(run: SwiftRun, life_s: float, chance: random.Random) -> bool:
    """Whether the run is still there at that moment."""
    if chance.random() < EARLY:
        time.sleep(chance.uniform(0.0, EARLY_S))
    else:
        assert run.wait(run.has_trained, START_S), f"it does not train; {run.tail()}"
        time.sleep(chance.expovariate(1 / life_s))
    return run.status is None


def recoveries(run: SwiftRun) -> list[float]:
    """Seconds from giving the command again to the first step, of the starts that came to one."""
    first: dict[int, float] = {}
    for line in run.trained():
        first.setdefault(line["life"], line["at_s"])
    return [at_s - run.launches_s[life - 1] for life, at_s in first.items() if life > 1]
