"""Training from a notebook cell, inside a running event loop."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_rewards_run_inside_a_running_loop(
    kind: str, tiny_model: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    threads: set[str] = set()

    def by_length(completions: list[str]) -> list[float]:
        threads.add(threading.current_thread().name)
        return [float(len(text) % 3) for text in completions]

    async def by_length_async(completion: str) -> float:
        await asyncio.sleep(0)
        return by_length([completion])[0]

    async def cell() -> None:
        reward = by_length if kind == "sync" else by_length_async
        train(tiny_model, write_rows(16), tmp_path / kind, rlhf_type="rloo", reward_funcs=[reward])

    asyncio.run(cell())
    # a synchronous verifier may set SIGALRM, which only the main thread can
    assert (threads == {threading.main_thread().name}) == (kind == "sync")
