"""Real training runs whose answers come from running servers."""

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pipeline_runs
import pytest
from llama_stand_in import LlamaServer
from pipeline_runs import PickedUp

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PROMPTS = 12


@pytest.fixture
def rows(write_rows: Callable[..., Path]) -> Path:
    return write_rows([{"messages": [{"role": "user", "content": f"say {n}"}]} for n in range(PROMPTS)])


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


@pytest.fixture
def servers(tiny_model: Path) -> Iterator[list[LlamaServer]]:
    found = [LlamaServer(tiny_model, port) for port in free_ports(2)]
    try:
        for server in found:
            server.launch()
        for server in found:
            server.wait()
        yield found
    finally:
        for server in found:
            server.kill()


def train(model: Path, rows: Path, output: Path, servers: list[LlamaServer], **changes: Any) -> Any:
    endpoints = [server.url for server in servers]
    return pipeline_runs.train(
        model,
        rows,
        output,
        **{"rollout_backend": "auto", "rollout_endpoints": endpoints, "top_k": -1} | changes,
    )


def test_a_run_on_two_servers_loses_no_prompt_when_one_is_killed_and_comes_back(
    tiny_model: Path,
    rows: Path,
    servers: list[LlamaServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from swift_rlx.trainers.pipeline import RolloutPipeline

    picked_up, killed, differences = PickedUp(monkeypatch), [], []
    pick_up, publish = RolloutPipeline.pick_up, RolloutPipeline.publish

    def killing(self: RolloutPipeline) -> Any:
        if len(picked_up.batches) == 2 and not killed:
            servers[0].kill()
            servers[0].launch()
            killed.append(True)
        if len(picked_up.batches) == 6:
            servers[0].wait()
        return pick_up(self)

    def watched(self: RolloutPipeline, files: Any) -> Any:
        version = publish(self, files)
        self.thread.wait_published(version, 60)
        differences.extend(one.weights.probe_difference for one in self.workers)
        return version

    monkeypatch.setattr(RolloutPipeline, "pick_up", killing)
    monkeypatch.setattr(RolloutPipeline, "publish", watched)
    train(tiny_model, rows, tmp_path / "out", servers, max_steps=12, tuner_type="lora")

    trained = Counter(picked_up.prompts())
    assert killed
    assert set(trained.values()) == {1}
    assert sum(trained.values()) == 24, "all prompts of two epochs"
    assert max(picked_up.staleness()) <= 2
    assert max(differences) < 1e-3, "every version was served"


def test_where_no_server_listens_the_run_ends_before_its_first_step(
    tiny_model: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swift_rlx.backends import remote_start
    from swift_rlx.errors import BackendUnavailable
    from swift_rlx.trainers import server_plan

    async def soon(*args: Any, **options: Any) -> Any:
        return await remote_start.survey(*args, **options, limit_s=0.5)

    monkeypatch.setattr(server_plan, "survey", soon)
    [port] = free_ports(1)
    begin = time.monotonic()
    with pytest.raises(
        BackendUnavailable, match=rf"within 0\.5 s: http://127\.0\.0\.1:{port} cannot be reached"
    ):
        train(tiny_model, rows, tmp_path / "out", [LlamaServer(tiny_model, port)])
    assert time.monotonic() - begin < 60


def test_a_server_that_runs_another_model_ends_the_run_with_that(
    tiny_model: Path, rows: Path, tmp_path: Path
) -> None:
    from tiny_llama import save_tiny_llama

    from swift_rlx.errors import WeightMismatch

    other = tmp_path / "other"
    save_tiny_llama(other, seed=1)
    server = LlamaServer(other, free_ports(1)[0])
    server.launch()
    try:
        server.wait()
        with pytest.raises(
            WeightMismatch, match=r"does not serve the weights .* does it run the model that is trained"
        ):
            train(tiny_model, rows, tmp_path / "out", [server], tuner_type="lora")
    finally:
        server.kill()


def test_filters_are_refused_where_servers_give_log_probs_before_them(
    tiny_model: Path, rows: Path, tmp_path: Path, servers: list[LlamaServer]
) -> None:
    from swift_rlx.errors import ConfigError

    with pytest.raises(ConfigError, match="SGLang gives them before filters: use --top_p 1"):
        train(tiny_model, rows, tmp_path / "out", servers, top_k=20)
