"""The rules for every rollout engine, on vLLM: with all weights in a worker process, with adapters in this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm_runs import (
    MAX_MODEL_LEN,
    PROBE,
    load,
    move,
    move_adapter,
    save_adapter,
    save_full,
    save_model,
    score,
    with_adapter,
)

from swift_rlx.backends import EngineSpec, Probe, WeightFiles
from swift_rlx.backends.vllm_engine import create
from swift_rlx.backends.vllm_environment import environment
from swift_rlx.cluster import WorkerProcess
from swift_rlx.testing import EngineCase, check_engine

pytestmark = [pytest.mark.slow, pytest.mark.vllm]


def probed(files: WeightFiles, model: Any) -> WeightFiles:
    return WeightFiles(files.kind, files.directory, Probe(PROBE, score(model, PROBE), tolerance=1e-3))


def case(model: Any, weights: list[WeightFiles]) -> EngineCase:
    return EngineCase(
        vocabulary=300,
        max_model_len=MAX_MODEL_LEN,
        prompt=tuple(range(40, 50)),
        max_inflight=8,
        ends=(model.config.eos_token_id,),
        weights=weights,
    )


def test_vllm_in_a_worker_process_keeps_the_rules(tmp_path: Path):
    folder = save_model(tmp_path / "model", tied=True, ends=True)
    model, weights = load(folder), []
    for step in (1, 2, 3):
        move(model, seed=step)
        weights.append(probed(save_full(model, tmp_path / f"v{step}"), model))
    spec = EngineSpec(name="vllm", model=str(folder), max_model_len=MAX_MODEL_LEN, max_inflight=8)

    async def start() -> WorkerProcess:
        worker = WorkerProcess(spec, run_directory=tmp_path, environment=environment(spec))
        await worker.start()
        return worker

    check_engine(start, case(model, weights))


@pytest.mark.parametrize("update", ["keep", "pin"])
def test_vllm_with_adapters_keeps_the_rules(tmp_path: Path, update: str):
    folder = save_model(tmp_path / "model", tied=False, ends=True)
    policy, weights = with_adapter(load(folder)), []
    for step in (1, 2, 3):
        move_adapter(policy, seed=step)
        weights.append(probed(save_adapter(policy, tmp_path / f"v{step}"), policy))
    spec = EngineSpec(
        name="vllm",
        model=str(folder),
        max_model_len=MAX_MODEL_LEN,
        max_inflight=8,
        max_adapter_rank=4,
        options={"weight_update": update},
    )
    check_engine(lambda: create(spec), case(policy, weights))
