"""Worker processes that are killed or stopped at random moments, and engines whose own children are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fault_table import FaultRow
from leftovers import session_of
from swift_run import SwiftRun

START_S = 240.0
"""How long a run may take until its first step; vLLM on two cores is slow."""
END_S = 600.0
UNANSWERED = 3
"""A worker is given up by design after five starts without an answer: after three its next answer is waited for."""
AT_ANY_TIME = 0.2
"""Share of the tries that may also hit a worker that is being started."""
STOP_LIMIT_S = 7.0
"""A worker that is stopped for 5 s is killed; its silence is counted in ticks of half a second."""


@dataclass(frozen=True)
class Fault:
    """`victim`: the process that gets the signal, of the worker's number; None: it is not there yet."""

    name: str
    number: signal.Signals = signal.SIGKILL
    notice_limit_s: float = 2.0
    victim: Callable[[int, SwiftRun], int | None] = lambda pid, run: pid


def engine_child(pid: int, run: SwiftRun) -> int | None:
    """The core process of the vLLM engine in that worker."""
    for child, words in run.traces.processes().items():
        if words[0].startswith("VLLM::EngineCore") and session_of(child) == session_of(pid):
            return child
    return None


KILL = Fault("kill -9 of a worker")
STOP = Fault("SIGSTOP of a worker", signal.SIGSTOP, STOP_LIMIT_S)
KILL_ENGINE = Fault("kill -9 of vLLM's EngineCore", victim=engine_child)


@dataclass
class Disturbance:
    """Does a fault `tries` times to a run, `gap_s` apart on average, or until the run ends."""

    run: SwiftRun
    chance: random.Random
    gap_s: float
    done: list[tuple[Fault, str, int, float]] = field(default_factory=list)
    """Each try: fault, worker, its process, when."""

    def live(self, faults: list[Fault], tries: int, rows: dict[str, FaultRow]) -> int:
        """The run with up to so many tries, which its rows are told of; its end is waited for. How many there were."""
        row = rows.setdefault(faults[0].name, FaultRow(faults[0].name, faults[0].notice_limit_s))
        with self.run as run:
            run.launch()
            self._disturb(faults, tries)
            status = run.wait_end(END_S)
            self._measure(rows)
            row.conclude(run, status, touched={pid for _, _, pid, _ in self.done})
        return len(self.done)

    def _disturb(self, faults: list[Fault], tries: int) -> None:
        """Signals at random moments, to random workers; most of them to those that are at work."""
        assert self.run.wait(self.run.has_trained, START_S), f"it does not train; {self.run.tail()}"
        while len(self.done) < tries and self.run.status is None:
            time.sleep(self.chance.uniform(0.1, 2 * self.gap_s - 0.1))
            most = UNANSWERED if self.chance.random() < AT_ANY_TIME else 1
            workers = {name: pid for name, pid in self.run.workers().items() if self._since(name) < most}
            if workers and self.run.status is None:
                self._strike(self.chance.choice(faults), *self.chance.choice(sorted(workers.items())))

    def _strike(self, fault: Fault, name: str, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if (victim := fault.victim(pid, self.run)) is not None:
                os.kill(victim, fault.number)
                self.done.append((fault, name, pid, time.monotonic()))

    def _since(self, name: str) -> int:
        """Tries at this worker since it has answered; a stop, which takes its time, counts as many."""
        answers = self.run.events("answered", worker=name)
        since_s = answers[-1]["at_s"] if answers else 0.0
        mine = [fault for fault, worker, _, at_s in self.done if worker == name and at_s > since_s]
        return sum(UNANSWERED if fault.number == signal.SIGSTOP else 1 for fault in mine)

    def _measure(self, rows: dict[str, FaultRow]) -> None:
        """After the end: when each try was noticed, and when its worker answered again."""
        for fault, name, pid, at_s in self.done:
            row = rows.setdefault(fault.name, FaultRow(fault.name, fault.notice_limit_s))
            row.tries += 1
            lost = self.run.events("lost", at_s, pid=pid)
            if not lost:
                continue  # it was at its end anyway
            row.noticed_s.append(lost[0]["at_s"] - at_s)
            row.mid_answer += lost[0]["calls"] > 0
            later = [when for _, worker, _, when in self.done if worker == name and when > at_s]
            answered = self.run.events("answered", lost[0]["at_s"], worker=name)
            if answered and not (later and later[0] < answered[0]["at_s"]):
                row.recovered_s.append(answered[0]["at_s"] - at_s)
