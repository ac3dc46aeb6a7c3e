"""Two rollout servers, processes of their own, one of which breaks while the run goes on, and is well again later."""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
VARIABLE = "SWIFT_RLX_API_KEY"


@dataclass(frozen=True)
class ServerFault:
    """`kind`: what the server does; empty where its process is killed and started again.

    `hold_s`: how long it stays so. `is_judged_by_share`: it fails so fast that it could draw requests to itself.
    """

    name: str
    kind: str = ""
    hold_s: float = 4.0
    notice_limit_s: float | None = None
    is_other_model: bool = False
    is_judged_by_share: bool = False


FAULTS = (
    ServerFault("server answers 500", "500", hold_s=20.0, is_judged_by_share=True),
    ServerFault("server hangs", "hang", TIMEOUT_S + ABORT_GRACE_S, TIMEOUT_S + ABORT_GRACE_S + 2.0),
    ServerFault("server closes mid-stream", "close"),
    ServerFault("server answers garbage", "garbage"),
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
    """Two that answer."""
    folder.mkdir(parents=True, exist_ok=True)
    servers = [ServerProcess(task.model, folder) for _ in range(2)]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait()
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


def broken_run(
    run: SwiftRun,
    servers: list[ServerProcess],
    faults: list[ServerFault],
    other_model: Path,
    chance: random.Random,
    rows: dict[str, FaultRow],
    hold_s: float | None = None,
) -> int:
    """One run in which these faults happen one after the other; how many did before it ended.

    `hold_s`: how long a server stays broken, in the place of what the fault says; then nobody judges its share.
    """
    done = 0
    try:
        run.launch()
        assert run.wait(run.has_trained, START_S), f"it does not train; {run.tail()}"
        for planned in faults:
            fault = planned if hold_s is None else replace(planned, hold_s=hold_s, is_judged_by_share=False)
            time.sleep(chance.uniform(0.2, 2.0))
            if run.status is not None:
                break
            row = rows.setdefault(fault.name, FaultRow(fault.name, fault.notice_limit_s))
            _break(run, chance.choice(servers), fault, other_model, row, servers)
            done += 1
        status = run.wait_end(END_S)
    finally:
        run.end()
    row = rows.setdefault(faults[0].name, FaultRow(faults[0].name, faults[0].notice_limit_s))
    row.add(run.judge(), run.task.steps)
    if status != 0:
        row.wrong.append(f"a run ended with status {status}; {run.tail()}")
    row.wrong += [f"left behind: {what}" for what in run.traces.left()]
    row.wrong += [f"the servers' key stands in {path}" for path in run.secrets_found()]
    return done


def _break(
    run: SwiftRun,
    server: ServerProcess,
    fault: ServerFault,
    other_model: Path,
    row: FaultRow,
    servers: list[ServerProcess],
) -> None:
    """Break it, see that this is noticed, make it well, and wait until it answers again."""
    begin_s = time.monotonic()
    if fault.kind:
        server.breaks(fault.kind)
    else:
        server.restart(other_model if fault.is_other_model else run.task.model)
    row.tries += 1
    if run.wait(lambda: run.events("out", begin_s, worker=server.url), BACK_S):
        row.noticed_s.append(run.events("out", begin_s, worker=server.url)[0]["at_s"] - begin_s)
    time.sleep(max(0.0, begin_s + fault.hold_s * bool(fault.kind) - time.monotonic()))
    well_s = time.monotonic()
    server.breaks("")
    if fault.is_judged_by_share:
        _judge_share(servers, server, begin_s + 1.0, well_s, row)
    since_s = well_s if fault.kind else begin_s
    if run.wait(lambda: run.events("answered", since_s, worker=server.url), BACK_S):
        row.recovered_s.append(run.events("answered", since_s, worker=server.url)[0]["at_s"] - since_s)
    elif run.status is None:
        row.wrong.append(f"{server.url} has not answered again within {BACK_S:g} s")


def _judge_share(
    servers: list[ServerProcess], broken: ServerProcess, begin_s: float, end_s: float, row: FaultRow
) -> None:
    counts = {
        server: sum(begin_s <= line["at_s"] <= end_s for line in read_lines(server.requests))
        for server in servers
    }
    share = counts[broken] / max(sum(counts.values()), 1)
    row.notes.append(f"after its first second it got {counts[broken]} of {sum(counts.values())} requests")
    if share >= MAX_SHARE and counts[broken] > 2:
        row.wrong.append(f"a server that fails at once got {share:.1%} of the requests")
