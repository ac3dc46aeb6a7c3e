"""A server process that answers as SGLang's does, and breaks in the way that a file names.

    python faulty_server.py MODEL PORT FOLDER

FOLDER/fault-PORT: the fault of every request for an answer, empty for none. FOLDER/requests-PORT.jsonl: a line for each
such request, with the fault that it got. The key that it wants is in SWIFT_RLX_API_KEY.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).resolve().parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

import torch  # noqa: E402
from llama_stand_in import LlamaSglang  # noqa: E402
from stand_in_server import Fault  # noqa: E402

KEY = os.environ["SWIFT_RLX_API_KEY"]
FAULTS = {
    "500": Fault(500, b'{"error": "CUDA out of memory, with the key %s"}' % KEY.encode()),
    "hang": Fault(hangs=True),
    "close": Fault(breaks_off=True, after=1),  # of one event or two, where the machine is fast
    "garbage": Fault(body=b'\x80\x04\x95{"text": 1, "meta_info": []'),
}


class FaultyServer(LlamaSglang):
    """`folder`: where the fault is named, and requests are noted."""

    def __init__(self, model: Path, port: int, folder: Path) -> None:
        super().__init__(model, key=KEY)
        self.port = port
        self._fault_file = folder / f"fault-{port}"
        self._requests = folder / f"requests-{port}.jsonl"
        self.fault = self.planned

    def planned(self, path: str, body: dict[str, Any]) -> Fault | None:
        """The fault of a request. Text that is only scored is served, so that the server seems to be well."""
        if path != "/generate" or "logprob_start_len" in body:
            return None
        name = self._fault_file.read_text(encoding="utf-8") if self._fault_file.exists() else ""
        with self._requests.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"at_s": time.monotonic(), "fault": name}) + "\n")
        return FAULTS[name] if name else None


async def serve(model: Path, port: int, folder: Path) -> None:
    """Until the process is killed."""
    await FaultyServer(model, port, folder).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
