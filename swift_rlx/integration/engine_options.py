"""ms-swift's engine flags: read before ms-swift changes them, and forwarded to our workers."""

import json
import os
from dataclasses import fields
from typing import Any

from swift_rlx.backends.vllm_arguments import WeightTransfer, weight_transfer
from swift_rlx.errors import ConfigError

FORWARDED = {
    "vllm_gpu_memory_utilization": "gpu_memory_utilization",
    "vllm_tensor_parallel_size": "tensor_parallel_size",
    "vllm_pipeline_parallel_size": "pipeline_parallel_size",
    "vllm_enable_expert_parallel": "enable_expert_parallel",
    "vllm_max_num_seqs": "max_num_seqs",
    "vllm_max_model_len": "max_model_len",
    "vllm_disable_custom_all_reduce": "disable_custom_all_reduce",
    "vllm_enforce_eager": "enforce_eager",
    "vllm_limit_mm_per_prompt": "limit_mm_per_prompt",
    "vllm_max_lora_rank": "max_lora_rank",
    "vllm_enable_prefix_caching": "enable_prefix_caching",
    "vllm_quantization": "quantization",
    "vllm_disable_cascade_attn": "disable_cascade_attn",
    "vllm_mm_processor_cache_gb": "mm_processor_cache_gb",
    "vllm_speculative_config": "speculative_config",
}
"""Flag of ms-swift -> argument of vLLM's engine. `vllm_engine_kwargs` (JSON) may hold any other."""

JSON_FLAGS = ("vllm_limit_mm_per_prompt", "vllm_speculative_config")

REPLACED = {
    "use_vllm": "the pipeline's workers generate: use --rollout_backend vllm",
    "vllm_mode": "the pipeline's workers generate: use --rollout_backend vllm",
    "vllm_server_base_url": "name running servers with --rollout_endpoints",
    "vllm_server_host": "name running servers with --rollout_endpoints",
    "vllm_use_async_engine": "the workers always use vLLM's asynchronous engine: drop the flag",
    "vllm_data_parallel_size": "use --rollout_workers",
    "vllm_enable_lora": "LoRA is published as an adapter wherever the engine can load it: drop the flag",
    "sleep_level": "the workers have memory of their own and do not sleep: drop the flag",
    "offload_model": "the workers have memory of their own: drop the flag",
    "offload_optimizer": "the workers have memory of their own: drop the flag",
}
"""Flags that stand for ms-swift's own generation. Without the pipeline they keep their meaning."""


def engine_options(args: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    """What the user gave for vLLM, by the names of its engine arguments.

    Raises ConfigError where one of `JSON_FLAGS` is no JSON object, and for a transfer of weights that is not driven.
    """
    values = {flag: getattr(args, flag) for flag in FORWARDED}
    given = {
        FORWARDED[flag]: _json_object(flag, value) if flag in JSON_FLAGS else value
        for flag, value in values.items()
        if value not in (None, defaults[flag])
    }
    options = given | _json_object("vllm_engine_kwargs", args.vllm_engine_kwargs or {})
    weight_transfer(options.get("weight_transfer") or WeightTransfer.FILE)
    return options


def refuse_options_of_servers(options: dict[str, Any]) -> None:
    """Raise ConfigError for engine options where servers generate that were started by somebody else."""
    for name, value in options.items():
        given = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        raise ConfigError(
            f"--vllm_{name} {value} has no effect on the servers of --rollout_endpoints, which run already: give"
            f" {given} to the command that starts them, and drop it here"
        )


def _json_object(flag: str, value: Any) -> dict[str, Any]:
    """The value as ms-swift reads it: a dict, its JSON, or a file with that."""
    found = value
    if isinstance(value, str):
        try:
            if os.path.isfile(value):
                with open(value, encoding="utf-8") as file:
                    found = json.load(file)
            else:
                found = json.loads(value)
        except (OSError, ValueError):
            found = None
    if not isinstance(found, dict):
        raise ConfigError(f"--{flag} {value} is no JSON object; give one, such as '{{\"name\": 1}}'")
    return found


def refuse_replaced(args: Any, defaults: dict[str, Any], algorithm: str) -> None:
    """Raise ConfigError for a flag of ms-swift's own generation that the pipeline replaces."""
    for flag, advice in REPLACED.items():
        value = getattr(args, flag, None)
        if value not in (None, False, [], 0, defaults.get(flag)):
            raise ConfigError(
                f"--{flag} {value} cannot be used with the asynchronous pipeline of --rlhf_type {algorithm}: {advice};"
                " or use --async_rollout false, which generates as ms-swift does"
            )


def defaults_of(cls: type) -> dict[str, Any]:
    """The default of each field of a dataclass that has a plain one."""
    return {one.name: one.default for one in fields(cls)}
