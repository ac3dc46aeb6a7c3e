"""A tiny model, data and real runs for the tests that need them."""

import gc
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))
for name, value in {
    "USE_HF": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(name, value)


# torch's default port is one for all: test files that run side by side would meet on it.
with socket.create_server(("127.0.0.1", 0)) as server:
    os.environ["MASTER_PORT"] = str(server.getsockname()[1])


def pytest_collection_finish() -> None:
    """What is imported by now stays. To look for garbage in it takes 0.4 s, and each training run ends with that."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer llama of 300 tokens and its tokenizer."""
    from tiny_llama import save_tiny_llama

    folder = tmp_path_factory.mktemp("tiny") / "llama"
    save_tiny_llama(folder)
    return folder


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., Path]:
    """Write rows as a jsonl file; by default N prompts with their number in the column `row`."""
    from runs import write_rows

    def write(rows: int | Sequence[dict[str, Any]] = 16, name: str = "rows.jsonl") -> Path:
        return write_rows(tmp_path / name, rows)

    return write


@pytest.fixture
def eight_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are parsed as on a node of eight accelerators, four of which train."""
    from swift_rlx.integration import placement
    from swift_rlx.integration.devices import Machine

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "set back after the test")
    monkeypatch.setattr(placement, "this_machine", lambda use_cpu: Machine(tuple("01234567"), ranks=4))
