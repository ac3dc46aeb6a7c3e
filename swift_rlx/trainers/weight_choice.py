"""What is published: the adapter alone, or all weights, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import get_peft_model_state_dict
from swift.tuners import SwiftModel
from torch import Tensor, nn

from swift_rlx.errors import ConfigError
from swift_rlx.trainers.weight_pieces import plain_name

AdapterFault = Callable[[dict[str, Any], int], "str | None"]
"""Why an engine cannot load an adapter of this config under that maximum rank; None if it can."""

Layout = Callable[[nn.Module, dict[str, Tensor]], dict[str, Tensor]]
"""From the names and shapes that parameters have in a model to those of its checkpoints."""

MOVES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora-ga", "lora_ga")
"""Initializations of LoRA that take out of the base weights what they put into the adapter."""


def loads_all(config: dict[str, Any], max_rank: int) -> None:
    """The `AdapterFault` of an engine that loads with PEFT."""


def adapter_fault_of(engine_name: str) -> AdapterFault:
    """The rule of an engine. SGLang's is taken to be vLLM's: it says less about what it cannot load."""
    if engine_name in ("vllm", "sglang"):
        from swift_rlx.backends.vllm_adapter import adapter_fault

        return adapter_fault
    return loads_all


def layout_of(engine_name: str) -> Layout:
    """How an engine wants all weights: as the model has them for those that run the same model, else as files do."""
    if engine_name == "transformers":
        return _as_in_the_model
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before transformers 5 a model had the names of its files
        return _as_in_the_model
    return revert_weight_conversion


def _as_in_the_model(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors


def adapter_tensors(model: PeftModel, adapter: str) -> dict[str, Tensor]:
    """The tensors of an adapter file, by their names in it; where the model is sharded, so are they."""
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    # The embedding has to be asked for only where the vocabulary was resized, and looking for that is a download.
    found = get_peft_model_state_dict(model, tensors, adapter, save_embedding_layers=False)
    return {plain_name(name): tensor for name, tensor in found.items()}


def why_not_adapter(model: nn.Module, adapter: str, fault: AdapterFault, max_rank: int) -> str | None:
    """Why the adapter alone is not enough for an engine that has the starting weights; None if it is."""
    config = model.peft_config[adapter]
    if config.is_prompt_learning:
        return "it adds tokens to the prompt and no weights to the model"
    start = str(getattr(config, "init_lora_weights", None) or "").lower()
    if start.startswith(MOVES_THE_BASE):
        return f"--init_weights {start} changes the base weights too"
    kept = {id(tensor) for tensor in adapter_tensors(model, adapter).values()}
    outside = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in kept]
    if outside:
        return f"parameters outside the adapter are trained too, such as {outside[0]}"
    return fault(plain_config(config), max_rank)


def plain_config(config: Any) -> dict[str, Any]:
    """A PEFT config as `adapter_config.json` holds it."""
    values = config.to_dict()
    return {name: sorted(value) if isinstance(value, set) else value for name, value in values.items()}


def check_mergeable(model: nn.Module) -> None:
    """Raises ConfigError for a tuner whose weights are not those of the base model's parameters."""
    config = model.active_peft_config if isinstance(model, PeftModel) else None
    layers = [type(module) for module in model.modules() if isinstance(module, BaseTunerLayer)]
    if config is not None and (config.is_prompt_learning or not all(hasattr(one, "merge") for one in layers)):
        raise ConfigError(
            f"a {config.peft_type.value} adapter cannot be merged and the rollout engine cannot load it: train with"
            " --tuner_type lora or full, or use --async_rollout false"
        )


def check_known_tuner(model: nn.Module) -> None:
    """Raises ConfigError for ms-swift's own tuners, which no engine loads and which have no merge."""
    if isinstance(model, SwiftModel):
        kinds = ", ".join(sorted(adapter.config.swift_type.lower() for adapter in model.adapters.values()))
        raise ConfigError(
            f"the tuner '{kinds}' of ms-swift cannot be given to rollout workers: train with --tuner_type lora or full"
            " or another PEFT tuner, or use --async_rollout false"
        )


def check_not_quantized(model: nn.Module) -> None:
    """Raises ConfigError where merged weights would have to be quantized again."""
    for name, parameter in model.named_parameters():
        if not parameter.dtype.is_floating_point or parameter.dtype.itemsize < 2:
            raise ConfigError(
                f"the base model is quantized ({name} is {parameter.dtype}) and only an adapter that the rollout engine"
                " loads can be published for it: use plain LoRA, or a base model that is not quantized"
            )
