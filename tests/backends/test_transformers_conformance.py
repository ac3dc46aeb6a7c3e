"""The transformers engine under the suite for engines, with full weights, with adapters, and as a worker process."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers_runs import engine_of, save_full, spec

from swift_rlx.backends import Probe, WeightFiles, WeightKind
from swift_rlx.backends.transformers_loading import load
from swift_rlx.cluster import WorkerProcess
from swift_rlx.testing import EngineCase, check_engine

TEXT = np.arange(30, 50, dtype=np.int32)


@torch.no_grad()
def probe(model):
    ids = torch.tensor(TEXT).long()[None]
    scores = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
    return Probe(TEXT, scores[:, 0].numpy(), tolerance=1e-4)


@torch.no_grad()
def published(model, kind, seed, folder):
    torch.manual_seed(seed)
    if kind is WeightKind.FULL:
        other = copy.deepcopy(model)
        for value in other.parameters():
            value.add_(torch.randn_like(value) * 0.05)
        return replace(save_full(other, folder), probe=probe(other))
    config = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "down_proj"])
    other = get_peft_model(copy.deepcopy(model), config).eval()
    for value in other.parameters():
        if value.requires_grad:
            value.add_(torch.randn_like(value) * 0.2)
    other.save_pretrained(str(folder), save_embedding_layers=False)
    return WeightFiles(kind, str(folder), probe(other))


def case(loaded, kind, tmp_path):
    weights = [published(loaded.model, kind, seed, tmp_path / f"{seed}") for seed in (1, 2)]
    return EngineCase(
        vocabulary=300,
        max_model_len=200,
        prompt=(20, 21, 22),
        ends=tuple(loaded.ends),
        weights=weights,
        max_inflight=32,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", WeightKind)
def test_the_engine_keeps_the_rules(tiny_model, tmp_path, kind):
    loaded = load(spec(tiny_model, max_model_len=200))
    check_engine(lambda: engine_of(loaded), case(loaded, kind, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", WeightKind)
def test_so_does_a_worker_process_around_it(tiny_model, tmp_path, kind):
    described = spec(tiny_model, max_model_len=200)

    async def make():
        worker = WorkerProcess(described, run_directory=tmp_path, start_limit_s=300.0)
        await worker.start()
        return worker

    check_engine(make, case(load(described), kind, tmp_path))
