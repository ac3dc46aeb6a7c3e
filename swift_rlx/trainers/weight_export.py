"""The trainer's weights as files for the rollout workers, gathered by all ranks together on the main thread.

    group of pieces -> gather (ZeRO-3, FSDP2) -> rank 0: merge and cast, write one shard -> next group

so that beyond the model there is memory for one group only. Base weights are never written to.
"""

from __future__ import annotations

import copy
import itertools
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import save_file
from swift.rlhf_trainers.utils import get_gather_if_zero3_context
from swift.utils import get_logger
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from swift_rlx.backends.weights import Probe, WeightFiles, WeightKind
from swift_rlx.errors import BackendError
from swift_rlx.integration.worker_model import is_resized
from swift_rlx.trainers import weight_choice as choice
from swift_rlx.trainers.weight_pieces import Piece, pieces_of, published_tensors
from swift_rlx.trainers.weight_probe import TOLERANCE, make_probe, probe_tokens
from swift_rlx.types import IntArray

logger = get_logger()
GROUP_BYTES = 1 << 29
"""As many are gathered and written together."""
LAYER = re.compile(r"(\.\d+\.).*")
FAILURES = (OSError, SafetensorError, RuntimeError, ValueError)


@dataclass(frozen=True, slots=True)
class ExportCost:
    """`seconds` of the whole export, of which `probe_s` for the probe; `nbytes` written."""

    seconds: float
    probe_s: float
    nbytes: int


class WeightExporter:
    """Made once, when the model is ready for training; what it publishes is said in one log line.

    `engine_name` and `max_adapter_rank` are those of the workers' EngineSpec. `dtype`: of the engine, which files
    of all weights are written in; None: as trained. Raises ConfigError for what cannot be published.
    """

    def __init__(
        self,
        trainer: Any,
        engine_name: str,
        *,
        max_adapter_rank: int = 0,
        dtype: torch.dtype | None = None,
        why_no_adapter: str | None = None,
    ) -> None:
        self.last: ExportCost | None = None
        """What the latest export cost."""
        self._trainer = trainer
        self._dtype = dtype
        self._layout = choice.layout_of(engine_name)
        self._failure: Exception | None = None
        model = self._model
        choice.check_known_tuner(model)
        self._adapter = model.active_adapters[0] if isinstance(model, PeftModel) else None
        fault = choice.adapter_fault_of(engine_name)
        if why_no_adapter is not None:
            fault = lambda config, max_rank: why_no_adapter  # noqa: E731
        self.kind, reason = self._choose(fault, max_adapter_rank)
        if self.kind is WeightKind.FULL:
            choice.check_mergeable(model)
            choice.check_not_quantized(model)
            published_tensors(self._base, self._adapter)
        self._probe_ids = probe_tokens(model.get_input_embeddings().num_embeddings, _tokenizer(trainer))
        self._log(engine_name, reason)

    def export(self, directory: str | Path) -> WeightFiles | None:
        """Write the current weights into an empty directory. All ranks call it; rank 0 gets the record.

        Raises BackendError, on all ranks, if rank 0 could not write.
        """
        begin = time.perf_counter()
        probe = self.make_probe()
        probed = time.perf_counter()
        _reshard(self._model)
        folder = Path(directory)
        self._failure = None
        if self.kind is WeightKind.ADAPTER:
            self._write_adapter(folder)
        else:
            self._write_all(folder)
        self._raise_together(folder)
        if probe is None:
            return None
        nbytes = sum(file.stat().st_size for file in folder.iterdir())
        self.last = ExportCost(time.perf_counter() - begin, probed - begin, nbytes)
        return WeightFiles(self.kind, str(folder), probe)

    def make_probe(self) -> Probe | None:
        """Log-probs of the fixed text under the policy as it is now. All ranks call it; rank 0 gets the record."""
        with self._trainer._disable_sp_context():
            probe = make_probe(self._model, self._probe_ids, self._tolerance())
        return probe if self._is_main else None

    @property
    def probe_ids(self) -> IntArray:
        """The text of the probe."""
        return self._probe_ids

    def bytes_needed(self) -> int:
        """How large one export is, but for headers."""
        if self.kind is WeightKind.ADAPTER:
            adapter = choice.adapter_tensors(self._model, self._adapter)
            return sum(_size(tensor) for tensor in adapter.values())
        tensors = published_tensors(self._base, self._adapter)
        return sum(_size(tensor, self._dtype) for tensor in tensors.values())

    @property
    def _model(self) -> nn.Module:
        return self._trainer.accelerator.unwrap_model(self._trainer.model, keep_torch_compile=False)

    @property
    def _base(self) -> nn.Module:
        model = self._model
        return model.get_base_model() if isinstance(model, PeftModel) else model

    @property
    def _is_main(self) -> bool:
        return self._trainer.accelerator.is_main_process

    def _choose(self, fault: choice.AdapterFault, max_rank: int) -> tuple[WeightKind, str | None]:
        if self._adapter is None:
            return WeightKind.FULL, None
        reason = choice.why_not_adapter(self._model, self._adapter, fault, max_rank)
        if reason is None and is_resized(self._model):
            reason = "new tokens have embeddings that are in no file"
        return (WeightKind.ADAPTER, None) if reason is None else (WeightKind.FULL, reason)

    def _log(self, engine_name: str, reason: str | None) -> None:
        if not self._is_main:
            return
        what = "the adapter alone" if self.kind is WeightKind.ADAPTER else "all weights"
        if reason is not None:
            what = f"all weights, the adapter merged in a copy, because {reason}"
        logger.info(f"published to {engine_name}: {what}, {self.bytes_needed() / 1e6:,.1f} MB each time")

    def _tolerance(self) -> float:
        """Of the coarsest arithmetic that the trainer or the engine computes with."""
        autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}
        mixed = autocast.get(str(self._trainer.accelerator.mixed_precision))
        types = {parameter.dtype for parameter in self._model.parameters()} | {mixed, self._dtype}
        known = [TOLERANCE[dtype] for dtype in types if dtype in TOLERANCE]
        return max(known, default=TOLERANCE[torch.float32])

    def _write_adapter(self, folder: Path) -> None:
        config = copy.copy(self._model.peft_config[self._adapter])
        config.inference_mode = True
        sharded = choice.adapter_tensors(self._model, self._adapter)
        with self._gather(sharded.values()):
            tensors = {name: _whole(tensor) for name, tensor in sharded.items()}
            if self._is_main:
                with self._failure_kept():
                    config.save_pretrained(str(folder))
                    _save(folder / "adapter_model.safetensors", tensors)

    def _write_all(self, folder: Path) -> None:
        base = self._base
        names = published_tensors(base, self._adapter)
        for number, group in enumerate(_groups(pieces_of(base, self._adapter)), start=1):
            sources = {id(one): one for piece in group for one in piece.sources()}
            with self._gather(sources.values()):
                values = {key: _whole(tensor) for key, tensor in sources.items()}
                if self._is_main and self._failure is None:
                    with self._failure_kept():
                        tensors = self._layout(base, self._read(group, values, names))
                        _save(folder / f"model-{number:05d}.safetensors", tensors)

    def _read(
        self, group: list[Piece], values: dict[int, Tensor], names: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        return {
            name: tensor.to("cpu", _published_type(names[name], self._dtype))
            for piece in group
            for name, tensor in piece.read(values, self._adapter).items()
            if name in names
        }

    def _gather(self, tensors: Collection[Tensor]) -> AbstractContextManager[object]:
        return get_gather_if_zero3_context(self._trainer)(list(tensors))

    @contextmanager
    def _failure_kept(self) -> Iterator[None]:
        """Rank 0 goes on without raising, because the other ranks go on into the next gathering."""
        try:
            yield
        except FAILURES as error:
            self._failure = error

    def _raise_together(self, folder: Path) -> None:
        accelerator, failure = self._trainer.accelerator, self._failure
        failed = torch.tensor(float(failure is not None), device=accelerator.device)
        if accelerator.reduce(failed, "sum").item() > 0:
            why = failure or "rank 0 says why"
            raise BackendError(f"the weights could not be written to {folder}: {why}") from failure


def _tokenizer(trainer: Any) -> Any:
    template = getattr(trainer, "template", None)
    return template.tokenizer if template is not None else None


def _reshard(model: nn.Module) -> None:
    """Back to sharded parameters in full precision: FSDP2 may keep what the last forward pass gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _groups(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Successive whole layers of together at most GROUP_BYTES, or one that is larger alone.

    A layer is not cut, because its layout in a checkpoint may join what are several tensors in the model.
    """
    group: list[Piece] = []
    total = 0
    for _, found in itertools.groupby(pieces, lambda piece: LAYER.sub(r"\1", piece.prefix)):
        layer = list(found)
        size = sum(_size(tensor) for piece in layer for tensor in piece.sources())
        if group and total + size > GROUP_BYTES:
            yield group
            group, total = [], 0
        group += layer
        total += size
    yield group


def _size(tensor: Tensor, dtype: torch.dtype | None = None) -> int:
    """Bytes of the whole tensor, also where this rank holds a part of it."""
    numel = getattr(tensor, "ds_numel", None) or tensor.numel()
    return int(numel) * _published_type(tensor, dtype).itemsize


def _published_type(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


def _whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or the whole of which FSDP2 keeps a part on each rank."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return tensor
    if tensor.is_cpu and torch.accelerator.is_available():  # offloaded; NCCL cannot gather from there
        tensor = tensor.to(torch.accelerator.current_accelerator())
    return tensor.full_tensor()


def _save(file: Path, tensors: dict[str, Tensor]) -> None:
    dense = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(dense, file, metadata={"format": "pt"})
