"""Two rollout servers, processes of their own, one of which breaks while the run goes on, and is well again later."""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fault_table import FaultRow
from lineage import read_lines
from swift_run import HERE, SECRET, SUPPORT, SwiftRun, Task
from worker_faults import END_S, START_S

sys.path.insert(0, str(SUPPORT))

from llama_stand_in import LlamaServer

TIMEOUT_S = 8
ABORT_GRACE_S = 5
BACK_S = 60.0
MAX_SHARE = 0.01
"""Of the requests, that a server may get which fails at once, after the first second."""
PROBES = 2
"""Requests that it gets whatever the others get: one each time that it is taken in again, in the time of the fault."""
VARIABLE = "SWIFT_RLX_API_KEY"


@dataclass(frozen=True)
class ServerFault:
    """`kind`: what the server does; empty where its process is killed and started again.

    `hold_s`: how long it stays so. `is_judged_by_share`: it fails so fast that it could draw requests to itself.
    `is_of_answers`: it ends some answers and gives others, so it need not be taken out; an answer that it ended is
    recovered from when it was finished.
    """

    name: str
    kind: str = ""
    hold_s: float = 4.0
    notice_limit_s: float | None = None
    is_other_model: bool = False
    is_judged_by_share: bool = False
    is_of_answers: bool = False


FAULTS = (
    ServerFault("server answers 500", "500", 20.0, notice_limit_s=2.0, is_judged_by_share=True),
    ServerFault("server hangs", "hang", TIMEOUT_S + ABORT_GRACE_S, TIMEOUT_S + ABORT_GRACE_S + 2.0),
    ServerFault("server closes mid-stream", "close", notice_limit_s=2.0, is_of_answers=True),
    ServerFault("server answers garbage", "garbage", notice_limit_s=2.0),
    ServerFault("server is killed and restarts", notice_limit_s=2.0),
    ServerFault("server restarts, other weights", notice_limit_s=2.0, is_other_model=True),
)


class ServerProcess(LlamaServer):
    """A `faulty_server`."""

    variables: ClassVar[dict[str, str]] = {VARIABLE: SECRET}

    def __init__(self, model: Path, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        super().__init__(model, port)
        self.requests = folder / f"requests-{port}.jsonl"
        self._fault = folder / f"fault-{port}"
        self._model, self._words = model, self._command(model, port, folder)

    def _command(self, model: Path, port: int, folder: Path) -> list[str]:
        return [sys.executable, str(HERE / "faulty_server.py"), str(model), str(port), str(folder)]

    def breaks(self, kind: str) -> None:
        """From the next request on; '' for well."""
        self._fault.write_text(kind, encoding="utf-8")

    def restart(self, model: Path) -> None:
        """Killed, and started again on this model; it answers some seconds later."""
        self.kill()
        self._words[2] = str(model)
        self.launch()


@contextmanager
def servers_of(task: Task, folder: Path) -> Iterator[list[ServerProcess]]:
    """Two that are being started; a run waits for them."""
    folder.mkdir(parents=True, exist_ok=True)
    servers = [ServerProcess(task.model, folder) for _ in range(2)]
    try:
        for server in servers:
            server.launch()
        yield servers
    finally:
        for server in servers:
            server.kill()


def options(servers: list[ServerProcess]) -> dict[str, Any]:
    """Of the run on them. All weights are published: a server that comes back with others gets the right ones."""
    return {
        "rollout_backend": "auto",
        "rollout_workers": None,
        "rollout_endpoints": [server.url for server in servers],
        "rollout_timeout_s": TIMEOUT_S,
        "tuner_type": "full",
        "top_k": -1,
    }


@dataclass
class Breaking:
    """Breaks the two servers of a run. `other_model`: what one of them may come back with."""

    run: SwiftRun
    servers: list[ServerProcess]
    other_model: Path
    chance: random.Random

    def live(self, faults: list[ServerFault], rows: dict[str, FaultRow]) -> int:
        """The run, in which these faults happen one after the other; how many did before it ended."""
        done = 0
        first = rows.setdefault(faults[0].name, FaultRow(faults[0].name, faults[0].notice_limit_s))
        with self.run as run:
            run.launch()
            assert run.wait(run.has_trained, START_S), f"it does not train; {run.tail()}"
            for fault in faults:
                time.sleep(self.chance.uniform(0.2, 2.0))
                if run.status is not None:
                    break
                row = rows.setdefault(fault.name, FaultRow(fault.name, fault.notice_limit_s))
                happen = self._break_answers if fault.is_of_answers else self._break
                happen(self.chance.choice(self.servers), fault, row)
                done += 1
            first.conclude(run, run.wait_end(END_S))
        return done

    def _break(self, server: ServerProcess, fault: ServerFault, row: FaultRow) -> None:
        """Break it, see that this is noticed, make it well, and wait until it answers again."""
        run, begin_s = self.run, time.monotonic()
        row.tries += 1
        if fault.kind:
            server.breaks(fault.kind)
        else:
            server.restart(self.other_model if fault.is_other_model else run.task.model)
        run.wait(lambda: self._first_s("out", begin_s, server), BACK_S)
        if (out_s := self._first_s("out", begin_s, server)) is not None:
            row.noticed_s.append(out_s - self._noticeable_s(fault, server, begin_s, out_s, row))
        well_s = begin_s
        if fault.kind:
            time.sleep(max(0.0, begin_s + fault.hold_s - time.monotonic()))
            well_s = time.monotonic()
            server.breaks("")
            if fault.is_judged_by_share:
                self._judge_share(server, begin_s + 1.0, well_s, row)
        if out_s is None and fault.kind:
            if run.status is None:
                row.wrong.append(f"{server.url} answered {fault.kind} for {BACK_S:g} s and was not taken out")
            return
        run.wait(lambda: self._answered_s(begin_s, server), BACK_S)
        if (answered_s := self._answered_s(begin_s, server)) is not None:
            row.recovered_s.append(max(answered_s - well_s, 0.0))
        elif run.status is None:
            row.wrong.append(f"{server.url} has not answered again within {BACK_S:g} s")

    def _break_answers(self, server: ServerProcess, fault: ServerFault, row: FaultRow) -> None:
        """Let it break answers off, and follow the first one until it is finished."""
        run, begin_s = self.run, time.monotonic()
        row.tries += 1
        server.breaks(fault.kind)
        run.wait(lambda: self._first_s("failed", begin_s, server), BACK_S)
        time.sleep(max(0.0, begin_s + fault.hold_s - time.monotonic()))
        server.breaks("")
        failed = run.events("failed", begin_s, worker=server.url)
        if not failed:
            if run.status is None:
                row.wrong.append(f"{server.url} has broken off no answer within {BACK_S:g} s")
            return
        at_s, request = failed[0]["at_s"], failed[0]["request"]
        row.noticed_s.append(at_s - self._noticeable_s(fault, server, begin_s, at_s, row))

        def finished() -> list[dict[str, Any]]:
            return run.events("finished", at_s, request=request)

        run.wait(finished, BACK_S)
        if ends := finished():
            row.recovered_s.append(ends[0]["at_s"] - at_s)
        elif run.status is None:
            row.wrong.append(f"answer {request} was not finished within {BACK_S:g} s after it was broken off")

    def _first_s(self, event: str, since_s: float, server: ServerProcess) -> float | None:
        """When it happened first from then on; None: it has not."""
        found = self.run.events(event, since_s, worker=server.url)
        return found[0]["at_s"] if found else None

    def _answered_s(self, since_s: float, server: ServerProcess) -> float | None:
        """When it answered first after it was taken out for the last time, which may be before it was well."""
        outs = self.run.events("out", since_s, worker=server.url)
        return self._first_s("answered", outs[-1]["at_s"] if outs else since_s, server)

    def _noticeable_s(
        self, fault: ServerFault, server: ServerProcess, begin_s: float, out_s: float, row: FaultRow
    ) -> float:
        """From when on there was something to notice, at the latest when it was noticed.

        A kill: at once where the server had requests, which is what has to be noticed in time. Else, and for a fault
        that comes with the next request: from that one on; a server to which nobody sends anything is nobody's.
        """
        sent, ended = (
            [event["at_s"] for event in self.run.events(kind, worker=server.url)]
            for kind in ("sent", "ended")
        )
        if not fault.kind and sum(at < begin_s for at in sent) > sum(at < begin_s for at in ended):
            row.mid_answer += 1
            return begin_s
        return min([at for at in sent if at >= begin_s] + [out_s])

    def _judge_share(self, broken: ServerProcess, begin_s: float, end_s: float, row: FaultRow) -> None:
        """Of few requests two are more than the share that it may get, and no fewer can show that it is well again."""
        counts = {
            server: sum(begin_s <= line["at_s"] <= end_s for line in read_lines(server.requests))
            for server in self.servers
        }
        got, share = counts[broken], counts[broken] / max(sum(counts.values()), 1)
        row.notes.append(f"after its first second it got {got} of {sum(counts.values())} requests")
        if got > PROBES and share >= MAX_SHARE:
            row.wrong.append(f"a server that fails at once got {share:.1%} of the requests")
