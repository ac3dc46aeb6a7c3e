"""The command that starts a server as it is needed, to be copied from a message."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from swift_rlx.backends.remote_dialect import ServerKind
from swift_rlx.backends.remote_endpoint import KEY_VARIABLE, Endpoint
from swift_rlx.backends.remote_vllm import DEV_MODE, RUNTIME_LORA, TRANSFER_FLAG
from swift_rlx.backends.vllm_adapter import adapter_room
from swift_rlx.backends.vllm_arguments import PINNED_VERSIONS, PINNED_VERSIONS_IN_MEMORY
from swift_rlx.backends.vllm_plugin import PLUGIN
from swift_rlx.backends.weights import WeightKind

DEFAULT_RANK = 16
ON_CPU = (f"VLLM_PLUGINS={PLUGIN}", "VLLM_CPU_KVCACHE_SPACE=1")
"""Plugins of other packages are left out: ms-swift's wants torchvision, which has no place beside the CPU build, and
one that fails ends the server. Unless told how many GiB its keys and values get, it wants 92 % of the machine's memory.
Such a list is for a CPU alone: the plugins by which vLLM knows other devices are left out by it, too."""


def start_command(
    kind: ServerKind,
    endpoint: Endpoint,
    model: str,
    weights: Collection[WeightKind] = tuple(WeightKind),
    *,
    max_adapter_rank: int = DEFAULT_RANK,
    has_key: bool = False,
    on_cpu: bool = False,
) -> str:
    """For a server of this kind at the endpoint, that takes these kinds of weights while it runs.

    `has_key`: the key is taken from our variable, and not printed. `on_cpu`: for the CPU build of vLLM.
    """
    host = shlex.quote(endpoint.host)
    if kind is ServerKind.SGLANG:
        words = [f"python -m sglang.launch_server --model-path {shlex.quote(model)}"]
        words.append(f"--host {host} --port {endpoint.port}")
        if WeightKind.ADAPTER in weights:
            words.append(f"--enable-lora --max-lora-rank {max_adapter_rank} --lora-target-modules all")
        if has_key:
            words.append(f'--api-key "${KEY_VARIABLE}"')
        return " ".join(words)
    variables = [RUNTIME_LORA] if WeightKind.ADAPTER in weights else []
    variables += [DEV_MODE] if WeightKind.FULL in weights else []
    variables += ON_CPU if on_cpu else []
    variables += [f'VLLM_API_KEY="${KEY_VARIABLE}"'] if has_key else []
    words = [*variables, f"python -m vllm.entrypoints.openai.api_server --model {shlex.quote(model)}"]
    words.append(
        f"--host {host} --port {endpoint.port} --enable-scale-out --logprobs-mode processed_logprobs"
    )
    if WeightKind.ADAPTER in weights:
        words.append(
            f"--enable-lora --max-lora-rank {adapter_room(max_adapter_rank)} --max-loras {PINNED_VERSIONS}"
            f" --max-cpu-loras {PINNED_VERSIONS_IN_MEMORY}"
        )
    if WeightKind.FULL in weights:
        words.append(TRANSFER_FLAG)
    return " ".join(words)
