"""A checkpoint whose tensors are not those of the trained model: other names, and tensors that nobody loads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from vllm_runs import PROBE, move, running_engine, save_full, save_model, score

from swift_rlx.errors import BackendError

pytestmark = [pytest.mark.slow, pytest.mark.vllm]


def save_old_gpt2(folder: Path) -> Path:
    """As the first ones were: the bare model, with the causal masks of its layers."""
    save_model(folder, tied=True)  # for its tokenizer
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=300, n_embd=64, n_layer=2, n_head=2, n_positions=256, initializer_range=0.2
    )
    config.eos_token_id = config.bos_token_id = None
    GPT2LMHeadModel(config).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    mask = torch.ones(256, 256).tril()[None, None]
    masks = {f"h.{layer}.attn.bias": mask.clone() for layer in range(2)}
    save_file({**bare, **masks}, folder / "model.safetensors", metadata={"format": "pt"})
    assert "transformer" not in json.dumps(sorted(bare))
    return folder


def test_published_weights_replace_those_of_an_old_checkpoint(tmp_path: Path) -> None:
    folder = save_old_gpt2(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    not_loaded = tuple(sorted(model._keys_to_ignore_on_load_unexpected))
    memory = {"kv_cache_memory_bytes": 64 << 20}  # its config tells no sizes under the names that are known
    with running_engine(folder, not_loaded=not_loaded, options=memory) as run:
        assert np.abs(run.run(run.engine.logprobs(PROBE)) - score(model, PROBE)).max() < 1e-3
        before = score(model, PROBE)
        move(model, seed=1)
        files = save_full(model, tmp_path / "v1")
        run.publish(1, files)
        assert np.abs(run.run(run.engine.logprobs(PROBE)) - score(model, PROBE)).max() < 1e-3
        assert np.abs(score(model, PROBE) - before).max() > 0.1

        lacking = load_file(tmp_path / "v1" / "weights.safetensors")
        lost = lacking.pop("transformer.wpe.weight")
        assert lost.shape == (256, 64)
        save_file(lacking, tmp_path / "v1" / "weights.safetensors")
        with pytest.raises(BackendError, match=r"they lack transformer\.wpe\.weight"):
            run.publish(2, files)
