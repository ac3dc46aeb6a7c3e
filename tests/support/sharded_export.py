"""One of two ranks that export a model before and after it is sharded with FSDP2; run as a script.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python sharded_export.py FOLDER

ms-swift's own `--fsdp fsdp2` runs on accelerators only: on a CPU it trains with DDP.
"""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import torch
from accelerate import Accelerator
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from swift_rlx.errors import BackendError
from swift_rlx.trainers.weight_export import WeightExporter

LORA = {"target_modules": ["q_proj", "v_proj", "down_proj"], "r": 4}
CASES: dict[str, Any] = {
    "full": None,
    "lora": peft.LoraConfig(**LORA),
    "merged": peft.LoraConfig(**LORA, init_lora_weights="pissa"),
    "dora": peft.LoraConfig(**LORA, use_dora=True, modules_to_save=["norm"]),
    "adapter-with-modules": peft.LoraConfig(**LORA, modules_to_save=["norm"]),
}


def stand_in(model: torch.nn.Module, tokenizer: Any = None) -> Any:
    """As much of a trainer as an export needs."""
    return SimpleNamespace(
        accelerator=Accelerator(cpu=True),
        model=model,
        template=SimpleNamespace(tokenizer=tokenizer),
        _disable_sp_context=nullcontext,
    )


def tiny_model(case: str) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=101, tie_word_embeddings=True, initializer_range=0.2, **sizes)
    model = LlamaForCausalLM(config)
    if CASES[case] is None:
        return model
    model = peft.get_peft_model(model, CASES[case])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn_like(parameter)
    return model


def shard(model: torch.nn.Module) -> None:
    """In the units that accelerate makes: each layer, recomputed; last norm and tied embeddings; the rest."""
    inner = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    for number, layer in enumerate(inner.model.layers):
        inner.model.layers[number] = checkpoint_wrapper(layer)
        fully_shard(layer, mp_policy=mixed)
    fully_shard(
        [inner.model.norm, inner.model.embed_tokens, inner.lm_head],
        mp_policy=mixed,
        reshard_after_forward=False,
    )
    fully_shard(model, mp_policy=mixed)


def main(folder: Path, case: str) -> None:
    model = tiny_model(case)
    # What vLLM cannot load is merged; here it matters that PEFT's merge sees whole tensors.
    engine = "vllm" if case in ("merged", "dora") else "transformers"
    trainer = stand_in(model)
    rank = trainer.accelerator.process_index
    exporter = WeightExporter(trainer, engine, max_adapter_rank=8)
    for name in ("whole", "sharded", "again"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    whole = exporter.export(folder / "whole")
    needed = exporter.bytes_needed()

    shard(model)
    exporter = WeightExporter(trainer, engine, max_adapter_rank=8)
    first, second = exporter.export(folder / "sharded"), exporter.export(folder / "again")
    assert (first is None) == (second is None) == (rank > 0)
    assert exporter.bytes_needed() == needed
    facts: dict[str, Any] = {}
    try:
        exporter.export("/proc/nowhere")
    except BackendError as error:
        facts["failed"] = str(error)
    if rank == 0:
        facts["kind"] = first.kind.value
        facts["probes"] = [files.probe.logprobs.tolist() for files in (whole, first, second)]
    (folder / f"rank-{rank}.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    for case in CASES:
        main(Path(sys.argv[1]) / case, case)
    # A gloo worker that ends while the interpreter finalizes would abort the process (process_group.py).
    os._exit(0)
