"""What is in files of weights: names and shapes, read from their headers alone.

vLLM takes a set of weights that lacks some, or holds some under other names, without an error and goes on with a
mixture of old and new. So the names and shapes of published weights are compared with those that the model was started
from, before the engine is touched.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Mapping
from pathlib import Path

Shapes = Mapping[str, tuple[int, ...]]

_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000
NOT_WEIGHTS = "rotary_emb.inv_freq"
"""Constants that old checkpoints hold and nobody loads."""
OUTPUT_LAYER = "lm_head.weight"


def weight_files(directory: Path) -> list[Path]:
    """The files with tensors in a directory, sorted; those that an index names where there is one."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted(directory / name for name in set(named))
    return sorted(directory.glob("model*.safetensors")) or sorted(directory.glob("*.safetensors"))


def shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors; empty without a file. Raises `ValueError` for a file that is torn."""
    found: dict[str, tuple[int, ...]] = {}
    for file in weight_files(directory):
        found |= _shapes_of_file(file)
    return {name: shape for name, shape in found.items() if not name.endswith(NOT_WEIGHTS)}


def _shapes_of_file(path: Path) -> dict[str, tuple[int, ...]]:
    with path.open("rb") as file:
        start = file.read(_LENGTH.size)
        (length,) = _LENGTH.unpack(start) if len(start) == _LENGTH.size else (0,)
        header = file.read(min(length, _MAX_HEADER_BYTES))
    if not length or len(header) != length:
        raise ValueError(f"{path} is no complete safetensors file")
    entries = json.loads(header)
    entries.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    if path.stat().st_size < _LENGTH.size + length + end:
        raise ValueError(f"{path} is no complete safetensors file")
    return {name: tuple(entry["shape"]) for name, entry in entries.items()}


def weights_fault(
    base: Shapes, published: Shapes, *, ties_output: bool, not_loaded: Collection[str] = ()
) -> str | None:
    """Why `published` are not all weights of the model that was started from `base`, in words, or None.

    `ties_output`: the output layer is the embedding, so that either side may or may not hold it. `not_loaded`: see
    `EngineSpec`. An empty `base` (a checkpoint in another format) is taken for the same names.
    """
    if not published:
        return "there is no tensor in them"
    if not base:
        return None
    base = _with_prefix(base, published)
    tied = {name for name in {*base, *published} if name.endswith(OUTPUT_LAYER)} if ties_output else set()
    lacking = {
        name
        for name in base.keys() - published
        if not any(re.search(pattern, name) for pattern in not_loaded)
    }
    for what, names in (("lack", lacking), ("have in addition", published.keys() - base)):
        if found := sorted(names - tied):
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            return f"they {what} {found[0]}{more}"
    for name in sorted(base.keys() & published):
        if base[name] != published[name]:
            return f"{name} is {list(published[name])} and not {list(base[name])}"
    return None


def _with_prefix(base: Shapes, published: Shapes) -> Shapes:
    """`base` under the names that its model has inside one with an output layer, where it was saved without."""
    if base.keys() & published.keys():
        return base
    for prefix in sorted({name.partition(".")[0] for name in published}):
        inside = {f"{prefix}.{name}": shape for name, shape in base.items()}
        if inside.keys() & published.keys():
            return inside
    return base
