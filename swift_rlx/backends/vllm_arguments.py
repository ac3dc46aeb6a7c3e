"""From a description of an engine to the arguments of vLLM's. Imports nothing heavy."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_rlx.backends.base import WeightUpdate
from swift_rlx.backends.engine import EngineSpec
from swift_rlx.backends.vllm_adapter import RANKS, VOCABULARY, adapter_room
from swift_rlx.backends.vllm_weight_files import shapes
from swift_rlx.errors import ConfigError


class WeightTransfer(enum.Enum):
    """How full weights reach vLLM; the values are those of the option `weight_transfer`."""

    FILE = "file"
    """Files in shared memory."""
    IPC = "ipc"
    """CUDA memory of the trainer on the same card."""
    NCCL = "nccl"
    """A broadcast from the trainer's card."""


OURS = ("weight_update", "weight_transfer")
"""Options that are not vLLM's."""

FIXED = {
    "model": "it is the model that is trained",
    "dtype": "it is the trainer's",
    "seed": "every answer has a seed of its own",
    "logprobs_mode": "log-probs are those of the sampling that was used",
    "enable_lora": "it follows from what is trained",
    "weight_transfer_config": "use weight_transfer",
    "disable_log_stats": "nobody reads them",
}
"""Arguments of vLLM that follow from the run, and why they cannot be given."""

PINNED_VERSIONS = 4
"""Adapters that one batch of vLLM may mix when answers keep the version they began with."""
PINNED_VERSIONS_IN_MEMORY = 12
"""Adapters that stay loaded: one that is needed again is not read from files, which may be gone."""

QUANTIZED = ("qweight", "weight_packed")
"""Names of a quantized matrix in files of GPTQ, AWQ and compressed-tensors."""
EXPERTS = "experts"
KV_BLOCK_TOKENS = 128
KV_MEMORY_SHARE = 0.25
"""Of the free memory that a worker has a share of, at most this much is taken for keys and values on a CPU."""
MIN_KV_BYTES = 64 << 20
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class EngineArguments:
    """`vllm`: keyword arguments of `AsyncEngineArgs`."""

    vllm: Mapping[str, Any]
    weight_update: WeightUpdate
    weight_transfer: WeightTransfer

    def pins(self, spec: EngineSpec) -> bool:
        """Whether answers finish on the version that they began with, which adapters alone allow."""
        return self.weight_update is WeightUpdate.PIN and spec.max_adapter_rank > 0


def engine_arguments(spec: EngineSpec, known: Collection[str]) -> EngineArguments:
    """Arguments for vLLM; `known` are the names that it has.

    Options override what is only a default here. Raises `ConfigError` for one that vLLM does not have, that follows
    from the run, or that contradicts the rest of the description.
    """
    options = {name: value for name, value in spec.options.items() if value is not None}
    own = {name: options.pop(name) for name in OURS if name in options}
    for name in options:
        if name in FIXED:
            raise ConfigError(f"the vLLM option '{name}' cannot be given: {FIXED[name]}; drop it")
        if name not in known:
            raise ConfigError(
                f"the vLLM option '{name}' is unknown: use an argument of vLLM's AsyncEngineArgs, or"
                f" {' or '.join(OURS)}"
            )
    update = _choice(WeightUpdate, "weight_update", own.get("weight_update", "keep"))
    transfer = weight_transfer(own.get("weight_transfer", "file"))
    adapters = _adapter_arguments(spec, options, update)
    return EngineArguments({**_defaults(spec), **options, **adapters, **_fixed(spec)}, update, transfer)


def weight_transfer(value: object) -> WeightTransfer:
    """The option of that name. Raises `ConfigError` for one that cannot be used."""
    transfer: WeightTransfer = _choice(WeightTransfer, "weight_transfer", value)
    if transfer is not WeightTransfer.FILE:
        raise ConfigError(
            f"the vLLM option 'weight_transfer' is '{transfer.value}', which the trainer does not drive yet: use"
            " 'file', which goes through shared memory on every device"
        )
    return transfer


def _choice(kind: type[Any], option: str, value: object) -> Any:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(repr(one.value) for one in kind)
        raise ConfigError(f"the vLLM option '{option}' is {value!r}; it can be {choices}") from None


def _fixed(spec: EngineSpec) -> dict[str, Any]:
    return {
        "model": spec.model,
        "dtype": spec.dtype,
        "seed": spec.seed,
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
    }


def _defaults(spec: EngineSpec) -> dict[str, Any]:
    chosen: dict[str, Any] = {"max_num_seqs": spec.max_inflight, "enable_prefix_caching": True}
    if spec.max_model_len is not None:
        chosen["max_model_len"] = spec.max_model_len
    if spec.devices:
        size = int(str(spec.options.get("pipeline_parallel_size") or 1))
        if len(spec.devices) % size:
            raise ConfigError(
                f"the vLLM option 'pipeline_parallel_size' is {size} and the worker has {len(spec.devices)} devices: it"
                " has to divide them"
            )
        chosen["tensor_parallel_size"] = len(spec.devices) // size
    else:
        chosen["enforce_eager"] = True
        # A prompt that is read in parts makes vLLM step an answer's random numbers back, which a CPU's cannot.
        chosen["enable_chunked_prefill"] = False
        if "VLLM_CPU_KVCACHE_SPACE" not in os.environ and (kv_bytes := kv_cache_bytes(spec)):
            chosen["kv_cache_memory_bytes"] = kv_bytes
    return chosen


def _adapter_arguments(spec: EngineSpec, options: Mapping[str, Any], update: WeightUpdate) -> dict[str, Any]:
    if not spec.max_adapter_rank:
        return {"enable_lora": False}
    if spec.max_adapter_rank > RANKS[-1]:
        raise ConfigError(
            f"adapters of rank {spec.max_adapter_rank} cannot be served by vLLM: it has room up to {RANKS[-1]}; publish"
            " full weights"
        )
    # Left alone, vLLM puts an adapter around the output layer too, computes a product with the whole vocabulary for
    # nothing, and looks for the adapters of a text that is scored beside answers behind the end of its table: its CPU
    # build dies of that, and kernels of GPUs do not check it.
    targets = options.get("lora_target_modules") or _layers(Path(spec.model)) or None
    pins = update is WeightUpdate.PIN
    rank = max(spec.max_adapter_rank, int(options.get("max_lora_rank", 0)))
    return {
        "enable_lora": True,
        "lora_target_modules": targets,
        "max_lora_rank": adapter_room(rank),
        "max_loras": int(options.get("max_loras", PINNED_VERSIONS if pins else 1)),
        "max_cpu_loras": int(options.get("max_cpu_loras", PINNED_VERSIONS_IN_MEMORY if pins else 2)),
    }


def _layers(model: Path) -> list[str]:
    """Names of the layers of a checkpoint that multiply by a matrix, the vocabulary's left out.

    The experts of a layer are one for vLLM. A matrix is quantized where it has another name than `weight`.
    """
    found = set()
    for name, shape in shapes(model).items():
        *above, kind = name.split(".")
        if EXPERTS in above:
            found.add(EXPERTS)
        if len(above) > 1 and (kind in QUANTIZED or (kind == "weight" and len(shape) == 2)):
            found.add(above[-1])
    return sorted(found.difference(VOCABULARY))


def kv_cache_bytes(spec: EngineSpec, free_bytes: int | None = None) -> int | None:
    """Memory for the keys and values of `max_inflight` answers of full length on a CPU, not more than a share of
    what is free; None where the model's config does not tell the size (then vLLM chooses).
    """
    try:
        config = json.loads((Path(spec.model) / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        length = min(
            spec.max_model_len or config["max_position_embeddings"], config["max_position_embeddings"]
        )
        token_bytes = 2 * config["num_hidden_layers"] * heads * head * _ITEM_BYTES[spec.dtype]
    except (OSError, KeyError, ValueError, TypeError):
        return None
    blocks = spec.max_inflight * (length // KV_BLOCK_TOKENS + 1) + 1
    free = spec.memory_share * (_free_bytes() if free_bytes is None else free_bytes)
    return int(max(MIN_KV_BYTES, min(blocks * KV_BLOCK_TOKENS * token_bytes, KV_MEMORY_SHARE * free)))


def _free_bytes() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    [kibibytes] = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(kibibytes) << 10
