"""The program of a worker process of a reward service: builds the rewards once, then scores batches.

    python -m swift_rlx.reward_service.worker_program <descriptor> <process id of the service>

Rewards run in the main thread, so that verifiers that set an alarm work. The process does not outlive the service.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback

from swift_rlx.cluster.trainer_watch import end_after
from swift_rlx.errors import PluginError, RlxError
from swift_rlx.registry import one_line
from swift_rlx.reward_service.frames import TO_WORKER, Ready, Setup, Task, Unfit, read_blocking, send_blocking
from swift_rlx.reward_service.source_text import parse_source
from swift_rlx.reward_service.sources import ServedReward, find_loader, reward_finder
from swift_rlx.rewards.origin import import_file


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
        send_blocking(connection, Unfit(str(error) if isinstance(error, RlxError) else one_line(error)))
        return 1
    is_there = send_blocking(connection, Ready(tuple(reward.offer for reward in rewards.values())))
    while is_there and (data := read_blocking(connection)) is not None:
        task = TO_WORKER.decode(data)
        if not isinstance(task, Task):
            return 1
        is_there = send_blocking(connection, rewards[task.reward].score(task.rows))
    return 0


def _build(setup: Setup) -> dict[str, ServedReward]:
    for path in setup.plugins:
        _import_plugin(path)
    load = find_loader(setup.loader, setup.loader_options)
    find = reward_finder(setup.finder, setup.finders_own)
    sources = [parse_source(text) for text in setup.sources]
    return {source.name: ServedReward(source, setup.version, load, find) for source in sources}


def _import_plugin(path: str) -> None:
    """A file of the user, which registers rewards. Raises `PluginError`, with the line of the file that failed."""
    try:
        import_file(path)
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == os.path.abspath(path)]
        where = f" in line {lines[-1]}" if lines else ""
        raise PluginError(
            f"--external-plugins {path} cannot be imported: {one_line(error)}{where}; mend that file"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
