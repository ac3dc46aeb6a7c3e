"""A model as pieces that are read one after the other, under the names that its base model gives its parameters.

    layer without adapter              its own parameters, as they are
    layer with an adapter              a float32 copy of it, merged by PEFT's own `merge`
    layer trained in the adapter's     the trained copy (`modules_to_save`)
      place

The model itself is never written to, so that nothing is rounded off it however often it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn

from swift_rlx.errors import ConfigError

TRANSPARENT = ("_orig_mod", "_checkpoint_wrapped_module")
"""Children that torch.compile and activation checkpointing put between a module and its name."""

Values = Mapping[int, Tensor]
"""The whole, gathered tensor of each parameter and buffer, by the `id` of what the module holds."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A module's own tensors, or with `adapted` those of the layer that an adapter was put around.

    Its tensors are its parameters and those buffers that a checkpoint holds.
    """

    prefix: str
    module: nn.Module
    adapted: bool

    def sources(self) -> Iterator[Tensor]:
        """All that has to be gathered to read the piece."""
        yield from self.module.parameters(recurse=self.adapted)
        yield from self.module.buffers(recurse=self.adapted)

    def targets(self) -> Iterator[tuple[str, Tensor]]:
        """Name of each tensor that `read` gives, and what the base model has there."""
        return _base_tensors(self.module, self.prefix, recurse=self.adapted)

    def read(self, values: Values, adapter: str | None) -> dict[str, Tensor]:
        """Its tensors by name; those of an adapted layer are merged and float32."""
        if not self.adapted:
            return {name: values[id(tensor)] for name, tensor in self.targets()}
        return _merged(self, values, adapter)


def pieces_of(module: nn.Module, adapter: str | None = None, prefix: str = "") -> Iterator[Piece]:
    """The pieces of a model, the base model of a `PeftModel`, or a part of either named `prefix`."""
    if isinstance(module, ModulesToSaveWrapper):
        trained = dict(module.modules_to_save)
        yield from pieces_of(trained.get(adapter, module.original_module), adapter, prefix)
        return
    adapted = isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))
    piece = Piece(prefix, module, adapted)
    if any(True for _ in piece.targets()):
        yield piece
    if not adapted:
        for name, child in module.named_children():
            yield from pieces_of(child, adapter, _below(prefix, name))


def published_tensors(model: nn.Module, adapter: str | None) -> dict[str, Tensor]:
    """Each name that is published and what the base model or the adapter has there; of tied ones the first name.

    Raises:
        ConfigError: the adapter changes one of two tied parameters, which makes them two, and a model that is loaded
            with the base model's config has only one place for both.
    """
    tied: dict[int, list[str]] = {}
    for piece in pieces_of(model):
        for name, tensor in piece.targets():
            tied.setdefault(id(tensor), []).append(name)
    pieces = {name: piece for piece in pieces_of(model, adapter) for name, _ in piece.targets()}
    current = {name: tensor for piece in pieces_of(model, adapter) for name, tensor in piece.targets()}
    for names in tied.values():
        parted = len({id(current[name]) for name in names}) > 1 or any(pieces[name].adapted for name in names)
        if len(names) > 1 and parted:
            raise ConfigError(
                f"{' and '.join(names)} are one parameter in the base model and the adapter makes them differ, which"
                " merged weights cannot express: leave them out of --target_modules and --modules_to_save, or use"
                " --rollout_backend transformers"
            )
    return {names[0]: current[names[0]] for names in tied.values()}


def plain_name(name: str) -> str:
    """A name in a wrapped model as it was before."""
    return ".".join(part for part in name.split(".") if part not in TRANSPARENT)


def _below(prefix: str, name: str) -> str:
    return prefix if name in TRANSPARENT else f"{prefix}{name}."


def _base_tensors(module: nn.Module, prefix: str, *, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Parameters and kept buffers under their names in the base model, those of adapters left out."""
    if isinstance(module, AuxiliaryTrainingWrapper):
        module = module.token_adapter
    if isinstance(module, BaseTunerLayer):
        module = module.get_base_layer()
    for name, tensor in {**module._parameters, **module._buffers}.items():
        if tensor is not None and name not in module._non_persistent_buffers_set:
            yield prefix + name, tensor
    if recurse:
        for name, child in module.named_children():
            yield from _base_tensors(child, _below(prefix, name))


def _merged(piece: Piece, values: Values, adapter: str | None) -> dict[str, Tensor]:
    copy = _float32_copy(piece.module, values)
    layers = [layer for layer in copy.modules() if isinstance(layer, BaseTunerLayer)]
    with torch.no_grad():
        for layer in reversed(layers):  # where one adapter is put around another, the inner one first
            layer.merge(adapter_names=[adapter])
    return {name: tensor.detach() for name, tensor in _base_tensors(copy, piece.prefix)}


def _float32_copy(module: nn.Module, values: Values) -> nn.Module:
    """The module with tensors of its own, and without hooks, which may belong to a wrapper of the whole model."""
    copy = object.__new__(type(module))  # an FSDP class makes something else when it is called
    for name, value in module.__dict__.items():
        copy.__dict__[name] = value.copy() if isinstance(value, (dict, list, set)) else value
        if name.endswith("_hooks") and isinstance(value, dict):
            copy.__dict__[name] = type(value)()
    for name, parameter in module._parameters.items():
        if parameter is not None:
            whole = values[id(parameter)].to(torch.float32, copy=True)
            copy._parameters[name] = nn.Parameter(whole, requires_grad=False)
    for name, child in module._modules.items():
        if child is not None:
            copy._modules[name] = _float32_copy(child, values)
    return copy
