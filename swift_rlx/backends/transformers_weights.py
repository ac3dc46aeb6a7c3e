"""Published weights into a model that stays where it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import (
    PeftConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from safetensors import safe_open
from safetensors.torch import load_file

from swift_rlx.backends.weights import WeightFiles, WeightKind
from swift_rlx.errors import BackendRejected

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


class ModelWeights:
    """Replaces the weights of `model` in place. `is_torn`: an error in the middle has left it half of each.

    It may be read from other threads at any time: it is false while weights are being replaced.
    """

    def __init__(self, model: Any) -> None:
        self.is_torn = False
        self._is_midway = False
        self._model = model
        # Parameters stay the same objects when an adapter is put around them; only their names change then.
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._buffers = {
            name: each for name, each in model.state_dict().items() if name not in self._parameters
        }
        self._modules = [(module, dict(module._modules)) for module in model.modules()]
        self._adapted: PeftModel | None = None
        self._config: Mapping[str, object] = {}
        self._is_replaced = False

    def apply(self, files: WeightFiles) -> None:
        """Serve these weights. Raises `BackendRejected` for files that do not fit; the model is then as before."""
        apply = self._apply_full if files.kind is WeightKind.FULL else self._apply_adapter
        self._is_midway = False
        try:
            apply(Path(files.directory))
        except BaseException:
            self.is_torn = self.is_torn or self._is_midway
            raise
        self.is_torn = False

    def _apply_full(self, directory: Path) -> None:
        """Copy every parameter. A persistent buffer may be among the files, a tied parameter has to be there once."""
        shards = sorted(directory.glob("*.safetensors"))
        if not shards:
            raise BackendRejected(f"weights in '{directory}' are refused: there is no *.safetensors in it")
        places: dict[str, torch.Tensor] = {**self._buffers, **self._parameters}
        found: dict[str, tuple[int, ...]] = {}
        for shard in shards:
            with safe_open(shard, "pt") as file:
                found.update({name: tuple(file.get_slice(name).get_shape()) for name in file.keys()})  # noqa: SIM118
        covered = {id(places[name]) for name in found if name in places}
        missing = {
            id(each): name for name, each in reversed(self._parameters.items()) if id(each) not in covered
        }
        _check(directory, found, places, missing.values())
        self._remove_adapter()
        self._is_replaced = self._is_midway = True
        with torch.no_grad():
            for shard in shards:
                for name, tensor in load_file(shard).items():
                    places[name].copy_(tensor)

    def _apply_adapter(self, directory: Path) -> None:
        config = self._adapter_config(directory)
        weights = load_file(directory / ADAPTER_WEIGHTS)
        plain = {key: value for key, value in config.to_dict().items() if key != "inference_mode"}
        is_new = self._adapted is None or plain != self._config
        if is_new:
            self._is_midway = self._adapted is not None
            self._remove_adapter()
            config.inference_mode = True
            self._adapted, self._config = get_peft_model(self._model, config).eval(), plain
        expected = get_peft_model_state_dict(self._adapted, save_embedding_layers=False)
        found = {name: tuple(value.shape) for name, value in weights.items()}
        try:
            _check(directory, found, expected, [name for name in expected if name not in found])
        except BackendRejected:
            if is_new:
                self._remove_adapter()
            raise
        self._is_midway = True
        set_peft_model_state_dict(self._adapted, weights)

    def _adapter_config(self, directory: Path) -> PeftConfig:
        for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
            if not (directory / name).is_file():
                raise BackendRejected(f"adapter in '{directory}' is refused: it has no {name}")
        if self._is_replaced:
            raise BackendRejected(
                f"adapter in '{directory}' is refused: full weights have replaced those that it belongs to;"
                " publish full weights, or restart the worker"
            )
        config = PeftConfig.from_pretrained(str(directory))
        if config.is_prompt_learning:
            raise BackendRejected(
                f"adapter in '{directory}' is refused: {config.peft_type.value} adds tokens to the prompt instead"
                " of weights to the model; publish full weights or use another adapter type"
            )
        return config

    def _remove_adapter(self) -> None:
        if self._adapted is None:
            return
        self._adapted.unload()
        self._adapted = None
        for module, children in self._modules:  # peft leaves its copies of whole modules in their places
            module._modules.clear()
            module._modules.update(children)


def _check(
    where: Path,
    found: Mapping[str, tuple[int, ...]],
    expected: Mapping[str, torch.Tensor],
    missing: Iterable[str],
) -> None:
    unknown = [name for name in found if name not in expected]
    shapes = [
        f"{name} {list(shape)} instead of {list(expected[name].shape)}"
        for name, shape in found.items()
        if name in expected and shape != tuple(expected[name].shape)
    ]
    faults = {"unknown": unknown, "missing": list(missing), "of another shape": shapes}
    words = [f"{_some(names)} {fault}" for fault, names in faults.items() if names]
    if words:
        raise BackendRejected(f"weights in '{where}' are refused: {'; '.join(words)}")


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
