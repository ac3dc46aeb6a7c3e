"""Weights from files, taken by a worker process of vLLM within one call. Imported by vLLM only.

vLLM's own transfers begin a reload in one call and end it in another: between the two the model has no weights, and a
call that fails leaves it so. Here the calls around `receive_weights` do nothing, and it does everything at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from swift_rlx.backends.vllm_weight_files import weight_files


@dataclass
class FileInit(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing is agreed on beforehand."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """`directory` with `*.safetensors`: all weights of the model, checked by the sender.

    `num_files`: how many the sender sees there; 0: it does not say.
    """

    directory: str
    num_files: int = 0


class FileTransfer(WeightTransferEngine[FileInit, FileUpdate]):  # type: ignore[misc]
    """Loads a directory of weights in place of the model's."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        """Nothing to do: the model keeps its weights until `receive_weights`."""

    def receive_weights(self, update_info: FileUpdate) -> None:
        """Replace all weights. vLLM makes no step meanwhile.

        Raises `FileNotFoundError`, the model untouched, where this machine does not see what the sender sees.
        """
        files = weight_files(Path(update_info.directory))
        if not files or update_info.num_files not in (0, len(files)):
            raise FileNotFoundError(
                f"{update_info.directory} has {len(files)} files of weights here, and {update_info.num_files or 'some'}"
                " where they were written"
            )
        with torch.no_grad():
            initialize_layerwise_reload(self.model)
            self.model.load_weights(_tensors(files))
            finalize_layerwise_reload(self.model, self.model_config)
            if self.device.type == "cpu":
                _repack_output_layers(self.model)

    def finish_weight_update(self) -> None:
        """Nothing to do: the weights are served."""

    def shutdown(self) -> None:
        """Nothing is held."""


def _tensors(files: Iterable[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no dictionary
                yield name, file.get_tensor(name)


def _repack_output_layers(model: Any) -> None:
    """Pack output layers anew from the weights that they have now.

    On a CPU vLLM multiplies by a packed copy, and its reload packs only layers that were given a tensor: an output
    layer that is tied to the embedding is given none and would keep multiplying by the old weights.
    """
    for module in model.modules():
        if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
