"""The model of a rollout worker as ms-swift loads it: for models whose loading is more than `from_pretrained`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from swift import get_model_processor
from swift.model import MODEL_MAPPING
from swift.model.patcher import get_lm_head_model
from swift.utils import import_external_file


def load(
    model_dir: str,
    *,
    model_type: str,
    dtype: str,
    num_devices: int = 0,
    vocabulary: int | None = None,
    plugins: Sequence[str] = (),
    **options: Any,
) -> tuple[Any, Any]:
    """The model with ms-swift's changes to it, without adapters, and its tokenizer.

    `num_devices`: accelerators of this process; 0: CPU. `plugins`: files of the user that may register the model
    type. `options`: further arguments of ms-swift's `get_model_processor`. The embeddings get as many rows as
    `vocabulary` says; what is in the new ones is not what the trainer has.
    """
    if model_type not in MODEL_MAPPING:
        for path in plugins:
            import_external_file(path)
    model, processor = get_model_processor(
        model_dir,
        torch_dtype=getattr(torch, dtype),
        model_type=model_type,
        device_map=device_map(num_devices),
        **{name: _plain(value) for name, value in options.items()},
    )
    if vocabulary is not None and vocabulary != vocabulary_of(model):
        get_lm_head_model(model).resize_token_embeddings(vocabulary, mean_resizing=False)
    return model, getattr(processor, "tokenizer", processor)


def vocabulary_of(model: Any) -> int:
    """Rows of the token embedding, by the configuration: its weights may be sharded over ranks."""
    return int(model.config.get_text_config().vocab_size)


def is_resized(model: Any) -> bool:
    """Whether a model that ms-swift loaded has token embeddings that its files do not have."""
    path = Path(getattr(model, "model_dir", ""), "config.json")
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    on_disk = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return on_disk is not None and on_disk != vocabulary_of(model)


def device_map(num_devices: int) -> str:
    """Where a model goes in a process that sees so many accelerators."""
    if not num_devices:
        return "cpu"
    return "auto" if num_devices > 1 else f"{torch.accelerator.current_accelerator().type}:0"


def _plain(value: Any) -> Any:
    """ms-swift writes into a dict that it was given."""
    return dict(value) if isinstance(value, Mapping) else value
