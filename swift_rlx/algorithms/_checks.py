"""Refuse wrong inputs before any arithmetic: broadcasting would turn a wrong shape into a wrong number."""

import torch
from torch import Tensor

_MASK_NAMES = {"B": "valid_B", "BT": "mask_BT"}


def require_tensors(caller: str, letters: str, mask: Tensor, **values: Tensor) -> None:
    """Refuse tensors that differ in shape or rank, a mask that is not bool, values that are not float.

    Args:
        caller: name of the public function, for the error message.
        letters: one letter per dimension, "B" or "BT".
        mask: the bool tensor, called `valid_B` or `mask_BT` in the message.
        values: the floating-point tensors by their argument name.

    Raises:
        ValueError: as above, with the shapes or the dtype.
    """
    mask_name = _MASK_NAMES[letters]
    shapes = {name: tuple(tensor.shape) for name, tensor in {**values, mask_name: mask}.items()}
    if len(set(shapes.values())) != 1 or mask.ndim != len(letters):
        got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"{caller} takes tensors of one shape [{', '.join(letters)}], got {got}")
    if mask.dtype != torch.bool:
        raise ValueError(f"{caller} takes a bool tensor as {mask_name}, got {mask.dtype}; use .bool()")
    require_float(caller, **values)


def require_one_per_row(caller: str, rows_BT: Tensor, **values: Tensor) -> None:
    """Raise ValueError unless every value is a floating-point tensor of shape [B] for the [B, T] tensor."""
    for name, tensor in values.items():
        if tensor.shape != rows_BT.shape[:1]:
            raise ValueError(
                f"{caller} takes one {name} per row, shape ({rows_BT.shape[0]},) for tokens of shape "
                f"{tuple(rows_BT.shape)}, got {tuple(tensor.shape)}"
            )
    require_float(caller, **values)


def require_float(caller: str, **values: Tensor) -> None:
    """Raise ValueError unless every value has a floating-point dtype."""
    for name, tensor in values.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{caller} takes a floating-point tensor as {name}, got {tensor.dtype}")


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """float64 for float64, else float32: a sum over thousands of tokens in 16 bits is noise."""
    return torch.promote_types(tensor.dtype, torch.float32)
