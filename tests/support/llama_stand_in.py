"""A process that answers as SGLang's server does, with the transformers engine on a real model behind it.

python llama_stand_in.py MODEL PORT
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from stand_in_sglang import StandInSglang

from swift_rlx.backends import EngineSpec, WeightFiles, WeightKind
from swift_rlx.backends.transformers_engine import create
from swift_rlx.types import PolicyVersion


class LlamaSglang(StandInSglang):
    """Its first folder is that of the model."""

    max_model_len = 512

    def prepare(self, folder: Path) -> Path:
        return folder

    def engine(self, folder: Path, update: str) -> Any:
        return create(EngineSpec("transformers", str(folder), max_model_len=self.max_model_len))

    async def adapted(self, folder: Path) -> Any:
        engine = self.engine(self.base, "pin")
        await engine.publish(PolicyVersion(), WeightFiles(WeightKind.ADAPTER, str(folder)))
        return engine

    def holds_weights(self, folder: Path) -> bool:
        return any(folder.glob("*.safetensors"))

    @torch.no_grad()
    def logits(self, engine: Any, ids: list[int]) -> np.ndarray[Any, Any]:
        return engine._loaded.model(torch.tensor([ids])).logits[0, -1].double().numpy()


class LlamaServer:
    """Such a process on a port, which it keeps. `variables`: further ones of its environment."""

    variables: ClassVar[dict[str, str]] = {}

    def __init__(self, model: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._words = [sys.executable, __file__, str(model), str(port)]
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start it; it answers some seconds later."""
        self._process = subprocess.Popen(self._words, env=os.environ | self.variables)

    def wait(self, limit_s: float = 90.0) -> None:
        """Until it answers."""
        assert self._process is not None
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            assert self._process.poll() is None, "it has ended"
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise AssertionError(f"{self.url} does not answer")

    def kill(self) -> None:
        """At once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


async def serve(model: Path, port: int) -> None:
    """Until the process is killed."""
    server = LlamaSglang(model)
    server.port = port
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
