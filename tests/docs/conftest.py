"""A stand-in for `swift rollout`, to which the arguments of `swift rlhf` already connect."""

import os
from collections.abc import Iterator
from typing import Any

import pytest


class FakeServer:
    """Accepts the connection that ms-swift opens."""

    def __init__(self, **connection: Any) -> None:
        self.connection = connection

    def close_communicator(self) -> None: ...

    def init_communicator(self, device: Any) -> None: ...


@pytest.fixture
def rollout_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """ms-swift also writes the variables of a process group for vLLM; they must not reach other tests."""
    from swift import rlhf_trainers

    monkeypatch.setattr(rlhf_trainers, "VLLMClient", FakeServer, raising=False)
    kept = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture(autouse=True)
def _vllm_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the pages are for machines with it."""
    monkeypatch.setattr("swift_rlx.backends.vllm_contract.installed_version", lambda: "0.32.0")
