"""The environment variables of a process that runs vLLM. Imports nothing heavy: the trainer's side asks too."""

from __future__ import annotations

import os
from collections.abc import Mapping

from swift_rlx.backends.engine import EngineSpec
from swift_rlx.backends.vllm_plugin import PLUGIN

ALWAYS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
# Binding threads to cores would bind every worker to the same ones. A compiled step is a gain on a GPU; here it costs
# seconds at the first request. Threads that wait must not spin: the trainer's are on the same cores. How many there
# are is the trainer's choice (OMP_NUM_THREADS): with more than free cores tokens/s collapse.
ON_CPU = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}


def environment(spec: EngineSpec, current: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables to lay over those of the worker process before it starts; what `current` has set stays as it is.

    `current`: by default this process's own. vLLM's variable of allowed plugins is extended, not replaced: without a
    list every installed plugin would be called, and one that fails ends the engine.
    """
    current = os.environ if current is None else current
    chosen = dict(ALWAYS)
    if not spec.devices:
        chosen |= ON_CPU
    if os.path.isdir(spec.model):
        chosen["HF_HUB_OFFLINE"] = "1"
    kept = {name: value for name, value in chosen.items() if name not in current}
    plugins = [name for name in current.get("VLLM_PLUGINS", "").split(",") if name and name != PLUGIN]
    kept["VLLM_PLUGINS"] = ",".join([*plugins, PLUGIN])
    if spec.devices:
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(spec.devices)
    return kept
