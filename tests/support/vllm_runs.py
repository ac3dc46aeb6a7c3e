"""A running vLLM engine for tests, and the same model in transformers to compare it with."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import save_file
from tiny_llama import save_tiny_llama
from transformers import AutoModelForCausalLM

from swift_rlx.backends import EngineSpec, GenerationRequest, WeightFiles, WeightKind
from swift_rlx.backends.vllm_engine import VllmEngine, create
from swift_rlx.types import Completion, IntArray, PolicyVersion, Prompt, SamplingParams

Result = TypeVar("Result")
MAX_MODEL_LEN = 256
PROBE = np.arange(10, 50, dtype=np.int32)
PROMPT = np.arange(40, 60, dtype=np.int32)


def save_model(folder: Path, *, tied: bool, ends: bool = False) -> Path:
    """A random llama of a size that vLLM's CPU build can run, by default without a token that ends an answer."""
    save_tiny_llama(
        folder, hidden_size=64, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=tied
    )
    if not ends:
        for name, key in (("generation_config", "eos_token_id"), ("tokenizer_config", "eos_token")):
            values = json.loads((folder / f"{name}.json").read_text())
            del values[key]
            (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


class EngineRun:
    """An engine with a loop of its own, on which all its calls run."""

    def __init__(self, model: Path, **changes: Any) -> None:
        self.spec = EngineSpec(
            name="vllm-0", model=str(model), max_model_len=MAX_MODEL_LEN, max_inflight=8, **changes
        )
        self.engine: VllmEngine = create(self.spec)  # type: ignore[assignment]
        self._loop = asyncio.new_event_loop()
        self._ids = itertools.count()

    def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        """The result of a call; a minute is enough for any."""
        return self._loop.run_until_complete(asyncio.wait_for(call, 60))

    def start(self, prompt: IntArray = PROMPT, name: str = "", **sampling: Any) -> asyncio.Task[Completion]:
        """Begin an answer, on the running loop."""
        request = GenerationRequest(
            name or f"r{next(self._ids)}",
            Prompt(0, prompt),
            0,
            SamplingParams(**{"max_tokens": 32, **sampling}),
            submit_s=1.0,
        )
        return asyncio.get_running_loop().create_task(self.engine.generate(request), name=request.request_id)

    def answer(self, prompt: IntArray = PROMPT, **sampling: Any) -> Completion:
        """One answer."""

        async def go() -> Completion:
            return await self.start(prompt, **sampling)

        return self.run(go())

    async def under_way(self, *tasks: asyncio.Task[Completion]) -> None:
        """Return when each of these answers has tokens."""
        for task in tasks:
            while not (task.done() or self._has_tokens(task.get_name())):  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    def _has_tokens(self, name: str) -> bool:
        answer = self.engine._answers.get(name)
        return answer is not None and bool(answer.token_ids)

    def publish(self, step: int, files: WeightFiles) -> None:
        """Publish and wait."""
        self.run(self.engine.publish(PolicyVersion(0, step), files))

    def close(self) -> None:
        """End the engine."""
        self.run(self.engine.close())
        # After the death of its process vLLM closes its sockets some time later, by a call on this loop. If the loop is
        # gone by then they stay open, and whoever collects their context as garbage waits for them forever.
        resources = self.engine._llm.engine_core.resources
        for socket in (resources.input_socket, resources.output_socket):
            socket.close(linger=0)
        self._loop.close()


@contextlib.contextmanager
def running_engine(model: Path, **changes: Any) -> Iterator[EngineRun]:
    """An engine that is closed in the end."""
    run = EngineRun(model, **changes)
    try:
        yield run
    finally:
        run.close()


def load(model: Path) -> Any:
    """The starting weights, in transformers."""
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def move(model: Any, seed: int, scale: float = 0.05) -> None:
    """Change every weight by noise."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)


def save_full(model: Any, folder: Path) -> WeightFiles:
    """All weights in one file, tied ones once."""
    folder.mkdir(parents=True)
    save_file(
        {name: p.detach().contiguous() for name, p in model.named_parameters()},
        folder / "weights.safetensors",
    )
    return WeightFiles(WeightKind.FULL, str(folder))


def save_adapter(model: Any, folder: Path) -> WeightFiles:
    """The adapter of a PEFT model."""
    model.save_pretrained(folder, save_embedding_layers=False)
    return WeightFiles(WeightKind.ADAPTER, str(folder))


def with_adapter(model: Any, rank: int = 4) -> Any:
    """The model with a LoRA adapter, in PEFT; only the adapter's weights are left to be changed by `move_adapter`."""
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
    return get_peft_model(
        model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, task_type="CAUSAL_LM")
    ).eval()


def move_adapter(model: Any, seed: int) -> None:
    """Change the adapter's weights by noise."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)


@torch.no_grad()
def logits_of(model: Any, token_ids: IntArray) -> torch.Tensor:
    """[T, V] in float32."""
    return model(torch.tensor(token_ids[None].astype(np.int64))).logits[0].float()


def score(model: Any, token_ids: IntArray, temperature: float = 1.0) -> np.ndarray[Any, Any]:
    """Log-prob of each token but the first, [T - 1]."""
    logprobs = torch.log_softmax(logits_of(model, token_ids) / temperature, -1)[:-1]
    return logprobs.gather(-1, torch.tensor(token_ids[1:, None].astype(np.int64)))[:, 0].numpy()


def score_answer(model: Any, answer: Completion, prompt: IntArray = PROMPT, temperature: float = 1.0) -> Any:
    """Log-probs of an answer's tokens, [T]."""
    whole = np.concatenate([prompt, answer.token_ids])
    return score(model, whole, temperature)[len(prompt) - 1 :]


def greedy(model: Any, count: int, prompt: IntArray = PROMPT) -> list[int]:
    """The most likely continuation, without a cache."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(logits_of(model, np.array(ids, np.int32))[-1].argmax()))
    return ids[len(prompt) :]
