"""The program of a worker process of a reward service: builds the rewards once, then scores batches.

    python -m swift_rlx.reward_service.worker_program <descriptor> <process id of the service>

Rewards run in the main thread, so that verifiers that set an alarm work. The process does not outlive the service.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
from pathlib import Path

from swift_rlx.cluster.trainer_watch import end_after
from swift_rlx.registry import one_line
from swift_rlx.reward_service.frames import TO_WORKER, Ready, Setup, Task, Unfit, framed, read_blocking
from swift_rlx.reward_service.source_text import parse_source
from swift_rlx.reward_service.sources import ServedReward, find_loader


def main() -> int:
    """The exit status."""
    connection, service = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    end_after(service)
    first = read_blocking(connection)
    setup = None if first is None else TO_WORKER.decode(first)
    if not isinstance(setup, Setup):
        return 1
    sys.path[:] = setup.sys_path
    try:
        rewards = _build(setup)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (foreign code)
        connection.sendall(framed(Unfit(one_line(error))))
        return 1
    connection.sendall(framed(Ready(tuple(reward.offer for reward in rewards.values()))))
    while (data := read_blocking(connection)) is not None:
        task = TO_WORKER.decode(data)
        if not isinstance(task, Task):
            return 1
        connection.sendall(framed(rewards[task.reward].score(task.rows)))
    return 0


def _build(setup: Setup) -> dict[str, ServedReward]:
    for number, path in enumerate(setup.plugins):
        _run_file(Path(path), f"served_rewards_{number}")
    load = find_loader(setup.loader, setup.loader_options)
    sources = [parse_source(text) for text in setup.sources]
    return {source.name: ServedReward(source, setup.version, load) for source in sources}


def _run_file(path: Path, name: str) -> None:
    """Import a file of the user, which registers rewards."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    sys.exit(main())
