"""Engines on tiny models, requests to them, and what a plain forward says of their answers."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import numpy as np
import torch
from safetensors.torch import save_file

from swift_rlx.backends import EngineSpec, GenerationRequest, WeightFiles, WeightKind
from swift_rlx.backends.transformers_engine import TransformersEngine
from swift_rlx.backends.transformers_loading import LoadedModel, load
from swift_rlx.types import Prompt, SamplingParams

PROMPTS = [list(range(20, 24)), list(range(90, 99)), [150, 151], list(range(200, 206))]


def spec(folder="", **fields):
    return EngineSpec(name="transformers", model=str(folder), **fields)


def endless(folder):
    """The model of a folder, whose answers only their length ends."""
    return replace(load(spec(folder)), ends=frozenset())


def loaded_model(model, **fields):
    """A model that was made in place."""
    model.eval().requires_grad_(False)
    size = model.get_input_embeddings().num_embeddings
    return LoadedModel(**{"model": model, "tokenizer": None, "ends": frozenset(), "max_length": None,
                          "vocabulary": size, **fields})  # fmt: skip


def engine_of(loaded, **fields):
    return TransformersEngine(spec(**fields), loaded)


def request(ids, name="request", inputs=None, **sampling):
    prompt = Prompt(index=0, token_ids=np.array(ids, np.int32), model_inputs=inputs or {})
    return GenerationRequest(name, prompt, 0, SamplingParams(**{"max_tokens": 12, **sampling}))


def run(loaded, work, **fields):
    """The result of `work(engine)` on an engine that is closed then."""

    async def all_of_it():
        engine = engine_of(loaded, **fields)
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(all_of_it())


def answers(loaded, requests, **fields):
    """Answers to requests that come at once."""
    return run(loaded, lambda engine: asyncio.gather(*map(engine.generate, requests)), **fields)


@torch.no_grad()
def logits(model, request, answer, **inputs):
    """What a forward over prompt and answer, without a cache, gives for each token of the answer, [T, V]."""
    ids = torch.tensor(np.concatenate([request.prompt.token_ids, answer.token_ids])).long()[None]
    found = model(input_ids=ids, use_cache=False, **inputs).logits[0].float()
    return found[len(request.prompt.token_ids) - 1 : -1]


def logprobs(model, request, answer, temperature=1.0, **inputs):
    """Log-probs of the tokens of the answer by that forward, [T]."""
    scores = (logits(model, request, answer, **inputs) / temperature).log_softmax(-1)
    return scores.gather(1, torch.tensor(answer.token_ids).long()[:, None])[:, 0].numpy()


def apart(one, other):
    return float(np.abs(one - other).max())


def save_full(model, folder, shards=1):
    """All parameters of a model as they are published."""
    folder.mkdir()
    tensors = {name: value.detach().clone() for name, value in model.named_parameters()}
    names = list(tensors)
    for shard in range(shards):
        save_file({name: tensors[name] for name in names[shard::shards]}, folder / f"{shard}.safetensors")
    return WeightFiles(WeightKind.FULL, str(folder))


class PausedModel:
    """Lets a test act in the middle of an answer: the model stops before its forward number `at` until `go`."""

    def __init__(self, model, at):
        self.at = at
        self._count = 0
        self._loop = asyncio.get_running_loop()
        self._reached, self._go = asyncio.Event(), threading.Event()
        self._hook = model.register_forward_pre_hook(self._before)

    def _before(self, module, arguments):
        self._count += 1
        if self._count == self.at:
            self._loop.call_soon_threadsafe(self._reached.set)
            assert self._go.wait(30)

    async def reached(self):
        await asyncio.wait_for(self._reached.wait(), 30)

    async def go(self):
        """Let all calls that were begun reach the engine's queue, then let the model go on."""
        await asyncio.sleep(0)
        self._hook.remove()
        self._go.set()
