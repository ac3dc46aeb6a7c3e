"""A nest of dicts, lists, plain values and tensors as one safetensors file: no pickle, and a torn file is noticed.

The tensors are the file's tensors, under the names "0", "1", ...; the nest itself is JSON in the file's metadata with
`{"tensor": "0"}` at their places. The file appears under its name only when it is complete.
"""

import json
import os
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from swift_rlx.errors import CheckpointError

_PLAIN = (str, int, float, bool, type(None))


def save_tree(path: str, tree: Any) -> None:
    """Write `tree` to `path`. Raises CheckpointError for a value that is none of dict, list, tuple, plain, tensor."""
    tensors: dict[str, torch.Tensor] = {}
    nest = json.dumps(_strip(tree, tensors))
    partial = f"{path}.partial"
    save_file(tensors, partial, metadata={"nest": nest})
    os.replace(partial, path)


def load_tree(path: str, device: torch.device) -> Any:
    """Read what `save_tree` wrote, tensors on `device`. Raises CheckpointError if the file is torn or foreign."""
    try:
        with safe_open(path, "pt") as file:
            nest = json.loads(file.metadata()["nest"])
            tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); resume from an earlier checkpoint"
        ) from error
    return _fill(nest, tensors)


def _strip(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise CheckpointError(f"a dict with other keys than strings cannot be saved: {list(value)[:5]}")
        return {"dict": {key: _strip(item, tensors) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_strip(item, tensors) for item in value]}
    if isinstance(value, _PLAIN):
        return {"plain": value}
    raise CheckpointError(
        f"a value of type {type(value).__name__} cannot be saved in a checkpoint: {value!r:.80}"
    )


def _fill(nest: Any, tensors: dict[str, torch.Tensor]) -> Any:
    ((kind, content),) = nest.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _fill(item, tensors) for key, item in content.items()}
    if kind == "plain":
        return content
    items = [_fill(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
