"""From the description of an engine to a model with its tokenizer on its device."""

from __future__ import annotations

import importlib
import inspect
import os
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from swift_rlx.backends.engine import EngineSpec
from swift_rlx.errors import ConfigError


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in evaluation mode, and what of its configuration an engine needs.

    `tokenizer`: None where the loader has none; it is needed for stop strings alone. `ends`: ids that end an
    answer. `max_length`: tokens of prompt and answer together; None: no limit. `vocabulary`: ids are below it.
    """

    model: Any
    tokenizer: Any
    ends: frozenset[int]
    max_length: int | None
    vocabulary: int


def load(spec: EngineSpec) -> LoadedModel:
    """Load the model of a description. Raises `ConfigError` for a model that this engine cannot decode."""
    _check_version()
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    model, tokenizer = _load_default(spec) if spec.loader is None else _load_by(spec.loader, spec)
    if model.config.is_encoder_decoder:
        raise ConfigError(
            f"model '{spec.model}' is refused: the transformers engine decodes causal models and"
            f" '{type(model).__name__}' is an encoder-decoder; choose a causal model"
        )
    device = _device(spec)
    if model.device.type != device.type:  # a quantized model must not be moved to where it is
        model.to(device)
    model.eval().requires_grad_(False)
    limits = [spec.max_model_len, getattr(model.config.get_text_config(), "max_position_embeddings", None)]
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        ends=_ends(model, tokenizer),
        max_length=min((limit for limit in limits if limit is not None), default=None),
        vocabulary=model.get_input_embeddings().num_embeddings,
    )


def _check_version() -> None:
    found = inspect.signature(transformers.GenerationMixin.prepare_inputs_for_generation).parameters
    if "next_sequence_length" not in found:
        raise ConfigError(
            f"transformers {transformers.__version__} is too old for the transformers engine: it builds on"
            " the preparation of inputs of transformers 5; upgrade it, or use --rollout_backend vllm"
        )


def _load_default(spec: EngineSpec) -> tuple[Any, Any]:
    # Several devices share one model by layers; the process sees its own devices only, so that they are the first.
    placed = {"device_map": "auto"} if len(spec.devices) > 1 else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        spec.model, dtype=spec.dtype, **placed, **spec.loader_options
    )
    return model, transformers.AutoTokenizer.from_pretrained(spec.model)


def _load_by(path: str, spec: EngineSpec) -> tuple[Any, Any]:
    module, colon, name = path.partition(":")
    loader = getattr(importlib.import_module(module), name, None) if colon else None
    if loader is None:
        raise ConfigError(f"model loader '{path}' is refused: it must be 'module:function' and exist")
    model, tokenizer = loader(spec.model, **spec.loader_options)
    return model, tokenizer


def _device(spec: EngineSpec) -> torch.device:
    """The first accelerator that this process sees; who starts it hides those of other workers."""
    if not spec.devices:
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if kind is None:
        raise ConfigError(
            f"device {spec.devices[0]!r} of engine '{spec.name}' is refused: this process sees no accelerator;"
            " leave the devices away to run on the CPU"
        )
    return torch.device(kind.type, 0)


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    ids = [*ids, getattr(tokenizer, "eos_token_id", None)]
    return frozenset(int(each) for each in ids if each is not None)
