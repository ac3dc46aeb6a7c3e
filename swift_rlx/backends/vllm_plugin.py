"""What vLLM calls in each of its processes (entry point `rlx` of `vllm.general_plugins`).

It is called wherever both packages are installed, also by programs that have nothing to do with us, so it may not fail.
"""

from __future__ import annotations

import os

PLUGIN = "rlx"
"""Our entry point in vLLM's group of plugins; workers name it in `VLLM_PLUGINS`."""
FILE_TRANSFER = "rlx_file"
"""Name of our way of giving vLLM weights: `WeightTransferConfig(backend=...)`."""
IPC_TRANSFER = "rlx_ipc"
"""Name of vLLM's transfer of CUDA memory with handles that travel as JSON."""

TRANSFERS = {
    FILE_TRANSFER: ("swift_rlx.backends.vllm_file_transfer", "FileTransfer"),
    IPC_TRANSFER: ("swift_rlx.backends.vllm_ipc_transfer", "IpcTransfer"),
}


def register() -> None:
    """Make our transfers known to vLLM; may be called again. A vLLM without the interface stays as it is."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

        known = WeightTransferEngineFactory._registry
    except (ImportError, AttributeError):
        return
    for name, (module, kind) in TRANSFERS.items():
        if name not in known:
            WeightTransferEngineFactory.register_engine(name, module, kind)
    if PLUGIN in os.environ.get("VLLM_PLUGINS", "").split(","):  # a process of ours, which names its plugins
        _use_adapter_products()


def _use_adapter_products() -> None:
    from vllm.platforms.cpu import CpuPlatform

    place = "swift_rlx.backends.vllm_cpu_adapters.AdapterProducts"
    CpuPlatform.get_punica_wrapper = classmethod(lambda cls: place)
