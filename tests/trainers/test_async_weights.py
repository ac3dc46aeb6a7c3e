"""The workers serve what was published: their answers are those of a model built from the published files."""

import asyncio
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pipeline_runs
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tiny_llama import save_tiny_llama
from transformers import AutoModelForCausalLM

from swift_rlx.backends import GenerationRequest, WeightFiles, WeightKind
from swift_rlx.types import Completion, Prompt, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PROBE = np.arange(10, 60, dtype=np.int32)
STEPS = 24
BACKENDS = ["transformers", pytest.param("vllm", marks=pytest.mark.vllm)]


def published_model(base: Path, files: WeightFiles) -> Any:
    """A transformers model of its own, from nothing but the base model and the published files."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if files.kind is WeightKind.ADAPTER:
        return PeftModel.from_pretrained(model, files.directory).eval()
    tensors = {
        k: v for file in Path(files.directory).glob("*.safetensors") for k, v in load_file(file).items()
    }
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert all("lm_head" in name for name in missing), "only a tied head may be missing"
    return model.eval()


@torch.no_grad()
def logprobs_of(model: Any, token_ids: np.ndarray) -> np.ndarray:
    ids = torch.tensor(token_ids[None].astype(np.int64))
    table = model(ids).logits[0, :-1].float().log_softmax(-1)
    return table.gather(1, ids[0, 1:, None])[:, 0].numpy()


@torch.no_grad()
def greedy(model: Any, prompt: np.ndarray, tokens: int) -> list[int]:
    ids = torch.tensor(prompt[None].astype(np.int64))
    for _ in range(tokens):
        ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids[0, prompt.size :].tolist()


class Published:
    """Asks the worker after each publish; keeps a copy of the files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        from swift_rlx.trainers.pipeline import RolloutPipeline

        self.files: list[WeightFiles] = []
        self.answers: list[Completion] = []
        self.logprobs: list[np.ndarray] = []
        publish = RolloutPipeline.publish

        def watched(pipeline: RolloutPipeline, files: WeightFiles) -> Any:
            kept = folder / str(len(self.files))
            shutil.copytree(files.directory, kept)
            version = publish(pipeline, files)
            pipeline.thread.wait_published(version, 60)
            self.files.append(WeightFiles(files.kind, str(kept), files.probe))
            self._ask(pipeline)
            return version

        monkeypatch.setattr(RolloutPipeline, "publish", watched)

    def _ask(self, pipeline: Any) -> None:
        worker, loop = pipeline.workers[0], pipeline.thread.loop
        request = GenerationRequest(
            f"probe-{len(self.files)}",
            Prompt(0, PROBE[:20]),
            0,
            SamplingParams(max_tokens=12, temperature=0.0),
        )
        self.answers.append(asyncio.run_coroutine_threadsafe(worker.generate(request), loop).result(60))
        self.logprobs.append(asyncio.run_coroutine_threadsafe(worker.logprobs(PROBE), loop).result(60))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tuner", ["lora", "full"])
def test_workers_serve_the_published_weights_and_the_reward_rises(
    backend: str, tuner: str, write_rows: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "model"
    save_tiny_llama(base, hidden_size=64, num_attention_heads=2, num_key_value_heads=1)
    published = Published(monkeypatch, tmp_path / "published")
    trainer = pipeline_runs.train(
        base, write_rows(12), tmp_path / "out",
        rollout_backend=backend, tuner_type=tuner, learning_rate=2e-2 if tuner == "lora" else 1e-2,
        beta=0.0, max_steps=STEPS, num_generations=16, per_device_train_batch_size=16,
    )  # fmt: skip

    models = [published_model(base, files) for files in published.files]
    ours = [logprobs_of(model, PROBE) for model in models]
    moved = [np.abs(new - old).max() for old, new in itertools.pairwise(ours)]
    assert sum(distance > 0.1 for distance in moved) >= 3, moved
    for number, model in enumerate(models):
        answer = published.answers[number]
        assert greedy(model, PROBE[:20], 12)[: answer.num_tokens] == answer.token_ids.tolist()
        assert np.abs(published.logprobs[number] - ours[number]).max() < 1e-4
    for number in range(1, len(models)):
        if moved[number - 1] > 0.1:
            assert np.abs(published.logprobs[number] - ours[number - 1]).max() > 0.05, (
                "not told from the last ones"
            )
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert np.mean(rewards[-4:]) > np.mean(rewards[:4]) + 0.05, rewards
