"""Adapters on vLLM's CPU build by one matrix product for all rows of an adapter.

vLLM's own way copies the adapter's matrices once for every token of a batch and multiplies each token by its copy
(`lora_weights[indices]` and a batched product). With one adapter in the batch, which is what training has, that copy
takes longer than the model: half of a decoding step of 16 answers, two thirds of reading their prompts (SmolLM2-135M,
rank 8, one core). The sums are the same; only their order differs.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU


class AdapterProducts(PunicaWrapperCPU):  # type: ignore[misc]  # vLLM is not there when types are checked
    """What vLLM's layers ask to add their adapters' part."""

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Note which rows of the next batch have which adapter; None where all have the same."""
        super().update_metadata(*args, **kwargs)
        of_rows = self.token_lora_indices
        used = torch.unique(of_rows).tolist()
        self._rows = {
            adapter: (of_rows == adapter).nonzero()[:, 0] if len(used) > 1 else None
            for adapter in used
            if adapter >= 0
        }

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **kwargs: Any,
    ) -> None:
        """Add `scale * x A^T B^T` to `y` in place, for each slice of the outputs and each adapter's rows.

        `x`: [..., inputs]; `y`: [..., outputs]; A: [adapters, 1, rank, inputs]; B: [adapters, 1, slice, rank].
        """
        outputs, inputs = y.view(-1, y.shape[-1]), x.reshape(-1, x.shape[-1])
        for adapter, rows in self._rows.items():
            own = (inputs if rows is None else inputs[rows]).float()
            start = 0
            for stacked_a, stacked_b, size in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                low = scale * (own @ stacked_a[adapter, 0].float().T)  # in float32, as vLLM has it
                part = low.to(y.dtype) @ stacked_b[adapter, 0].to(y.dtype).T
                place = outputs[:, start : start + size]
                if rows is None:
                    place += part
                else:
                    place.index_add_(0, rows, part)
                start += size
