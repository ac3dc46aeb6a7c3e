"""Full weights from the trainer's accelerator to vLLM's, by vLLM's own transfers (NCCL broadcast, CUDA IPC).

Nothing drives this yet, and it was not run on a GPU: what is tested is that everything here fits vLLM's interfaces.
Weights are files in shared memory on every device, and the other values of the option `weight_transfer` are refused.

    trainer: `sender(...)`, then `send_weights()` for each version
        vLLM's trainer half  ->  `Orders` (its client)  ->  order.json in a directory that is published as a version
    worker: `publish` of a directory with an order
        `read_order`  ->  vLLM's worker half, which meets the trainer's in NCCL or opens the CUDA memory

So control goes through the same channel as files do, and no pickle: handles of CUDA memory travel as JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swift_rlx.backends.vllm_arguments import WeightTransfer
from swift_rlx.backends.vllm_plugin import FILE_TRANSFER, IPC_TRANSFER

ORDER = "order.json"


def backend_of(transfer: WeightTransfer) -> str:
    """The name under which vLLM's worker half is registered; `ipc` is vLLM's own with JSON in place of pickle."""
    return {WeightTransfer.FILE: FILE_TRANSFER, WeightTransfer.IPC: IPC_TRANSFER}.get(
        transfer, transfer.value
    )


@dataclass(frozen=True, slots=True)
class Order:
    """What the worker half is told: `init` once, before the first version, then `update` for each version."""

    init: Mapping[str, Any] | None = None
    update: Mapping[str, Any] | None = None


def write_order(directory: Path, order: Order) -> None:
    """Put an order where weights in files would be."""
    text = json.dumps({"init": order.init, "update": order.update}, default=_plain)
    (directory / ORDER).write_text(text, encoding="utf-8")


def read_order(directory: Path) -> Order | None:
    """The order in a published directory; None: it holds files."""
    path = directory / ORDER
    return Order(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


class Orders:
    """vLLM's `VLLMWeightSyncClient` over our channel. `deliver` returns when every worker has done what it was told."""

    def __init__(self, deliver: Callable[[Order], None]) -> None:
        self._deliver = deliver

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Called while the trainer's half waits for the workers to meet it."""
        self._deliver(Order(init=init_info))

    def start_weight_update(self) -> None:
        """The worker does it as part of the update."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Called while the trainer's half sends."""
        self._deliver(Order(update=update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """The worker did it as part of the update."""


def sender(start: Any, deliver: Callable[[Order], None], source: Any) -> Any:
    """vLLM's trainer half; its `send_weights()` is called on every rank for each version.

    `start`: from `nccl_start` or `ipc_start`. `source`: vLLM's `WeightSource` of the weights.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    return WeightTransferTrainerFactory.trainer_init(start, client=Orders(deliver), source=source)


def nccl_start(rank: int, address: str, port: int, devices: int) -> Any:
    """`address`, `port`: where rank 0 waits for the workers; `devices`: of all workers together."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(address, port, devices + 1, rank=rank)


def ipc_start(rank: int) -> Any:
    """Rank and worker are on the same card."""
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    return IPCTrainerInitInfo(rank=rank)


def _plain(value: object) -> object:
    """What JSON has no word for: bytes, classes and dtypes in a handle of CUDA memory."""
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, type):
        return {"class": value.__name__}
    name = str(value)
    if name.startswith("torch."):
        return {"dtype": name.removeprefix("torch.")}
    raise TypeError(f"{type(value).__name__} cannot be sent")


def handle_of(values: Sequence[object]) -> tuple[object, ...]:
    """The arguments of torch's `rebuild_cuda_tensor`, back from JSON."""
    return tuple(_original(value) for value in values)


def _original(value: object) -> object:
    import torch

    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    [(kind, text)] = value.items()
    if kind == "bytes":
        return base64.b64decode(text)
    if kind == "dtype":
        return getattr(torch, text)
    classes = {
        "Tensor": torch.Tensor,
        "Parameter": torch.nn.Parameter,
        "UntypedStorage": torch.UntypedStorage,
    }
    return classes[text]
