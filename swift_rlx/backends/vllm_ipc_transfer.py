"""vLLM's transfer by CUDA IPC, its worker half, with handles that came as JSON. Imported by vLLM only; see
`vllm_device_transfer.py`.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

from swift_rlx.backends.vllm_device_transfer import handle_of


class IpcTransfer(IPCWeightTransferEngine):  # type: ignore[misc]
    """As vLLM's, which takes Python objects or pickle."""

    def parse_update_info(self, update_dict: dict[str, Any]) -> Any:
        """`ipc_handles`: for each tensor the handle by card, as `Order` carries it."""
        handles = [
            {card: handle_of(values) for card, values in one.items()} for one in update_dict["ipc_handles"]
        ]
        return super().parse_update_info({**update_dict, "ipc_handles": handles})
