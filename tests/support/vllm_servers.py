"""Real servers of vLLM for tests, started with the command that `swift-rlx doctor` prints, and flags for small ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from vllm_runs import MAX_MODEL_LEN

from swift_rlx.backends import WeightKind
from swift_rlx.backends.remote_commands import start_command
from swift_rlx.backends.remote_dialect import ServerKind
from swift_rlx.backends.remote_endpoint import Endpoint, parse_endpoints
from swift_rlx.backends.vllm_environment import ALWAYS, ON_CPU
from swift_rlx.cluster.guardian import end_group

START_S = 300.0
POLL_S = 0.3
SMALL = f"--dtype float32 --enforce-eager --max-model-len {MAX_MODEL_LEN} --max-num-seqs 8 --no-enable-chunked-prefill"


class VllmServer:
    """A server process with all that it started; it keeps its port over a restart."""

    def __init__(
        self, model: Path, folder: Path, kinds: Sequence[WeightKind] = tuple(WeightKind), flags: str = ""
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.endpoint: Endpoint = parse_endpoints([f"http://127.0.0.1:{port}"])[0]
        self.log = folder / f"server-{port}.log"
        self._model = model
        self._process: subprocess.Popen[bytes] | None = None
        self.configure(kinds, flags)

    def configure(self, kinds: Sequence[WeightKind], flags: str = "") -> None:
        """What weights it takes from its next start on. `flags`: further ones."""
        command = start_command(ServerKind.VLLM, self.endpoint, str(self._model), kinds, on_cpu=True)
        self._words = shlex.split(f"{command} {SMALL} {flags}")

    def launch(self) -> None:
        """Start the process; `wait` returns when it answers."""
        variables = dict(word.split("=", 1) for word in self._words if word.startswith("VLLM_"))
        words = [word for word in self._words if not word.startswith("VLLM_")]
        quiet = ALWAYS | ON_CPU | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        foreign = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words[1:]],
                env=foreign | quiet | variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_ready(self) -> bool:
        """Whether it answers. Raises `AssertionError` with the end of its log where it has ended."""
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text(errors="replace")[-3000:]
        try:
            with urllib.request.urlopen(f"{self.endpoint.url}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    async def wait(self) -> None:
        """Until it answers."""
        for _ in range(int(START_S / POLL_S)):
            if await asyncio.to_thread(lambda: self.is_ready):
                return
            await asyncio.sleep(POLL_S)
        raise AssertionError(f"no answer within {START_S} s: {self.log.read_text(errors='replace')[-3000:]}")

    def kill(self) -> None:
        """At once, with its processes and their shared memory, which vLLM itself leaves behind."""
        if self._process is not None:
            end_group(self._process.pid)
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def running_servers(servers: Sequence[VllmServer]) -> Iterator[None]:
    """They run within the block."""
    try:
        for server in servers:
            server.launch()
        asyncio.run(_wait_for_all(servers))
        yield
    finally:
        for server in servers:
            server.kill()


async def _wait_for_all(servers: Sequence[VllmServer]) -> None:
    await asyncio.gather(*(server.wait() for server in servers))
