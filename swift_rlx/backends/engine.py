"""What runs inside a worker process: an engine with a model, built from a description that fits through a channel.

    trainer process                                 worker process
    WorkerProcess (a Backend)  -- messages -->      WorkerHost -> Engine (a Backend that can also score a probe)

An engine is chosen by name: `transformers`, `vllm`, or one that a package offers in the entry-point group
`swift_rlx.backends`. The name stands for a function `(EngineSpec) -> Engine`, called in the worker process.
"""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from swift_rlx.backends.base import Backend
from swift_rlx.errors import ConfigError
from swift_rlx.registry import Registry
from swift_rlx.types import FloatArray, IntArray, PolicyVersion


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """All that an engine needs to start; plain data, because it is sent to another process.

    `model`: directory of the weights that it starts with. `loader`: dotted path "module:function" of what loads
    them for `transformers`; None: `AutoModelForCausalLM`. `devices`: accelerator ids of this worker; empty: CPU.
    `max_adapter_rank`: of the LoRA adapters that will be published; 0: none will be. `not_loaded`: regular expressions
    of tensors that the model's files may hold beyond what is published. `memory_share`: of what is free on the machine,
    where workers share it. `options`: the engine's own.
    """

    name: str
    model: str
    version: PolicyVersion = field(default_factory=PolicyVersion)
    loader: str | None = None
    loader_options: Mapping[str, object] = field(default_factory=dict)
    dtype: str = "float32"
    devices: tuple[str, ...] = ()
    max_model_len: int | None = None
    max_inflight: int = 32
    max_adapter_rank: int = 0
    not_loaded: tuple[str, ...] = ()
    memory_share: float = 1.0
    seed: int = 0
    options: Mapping[str, object] = field(default_factory=dict)


class Engine(Backend, Protocol):
    """A backend that holds the model in this process."""

    async def logprobs(self, token_ids: IntArray) -> FloatArray:
        """Log-probability of each token of `token_ids` [T] but the first given those before it, [T - 1].

        Under the weights that new requests get, at temperature 1 and without any filter, in float32. It shows that
        an engine serves the weights that it was given.
        """


EngineFactory = Callable[[EngineSpec], Engine]

IMPORT_LIMIT_S = 120.0
_IMPORT = """
import importlib, sys
path, sys.path[:] = sys.argv[1], sys.argv[2:]
module, _, function = path.partition(":")
try:
    if not callable(getattr(importlib.import_module(module), function)):
        raise TypeError("it is no function")
except BaseException as error:
    print(end="\\n<failed>" + type(error).__name__ + ": " + str(error))
"""
_FAILED = "<failed>"

BACKENDS = Registry(kind="rollout backend", group="swift_rlx.backends")
"""Names of engines; ours are registered by their entry points."""


def engine_factory(name: str) -> EngineFactory:
    """What builds the engine of this name: a registered one, or "module:function".

    Raises `PluginError` for a name that nobody offers, `ConfigError` for a path that leads nowhere.
    """
    module, _, function = name.partition(":")
    if not function:
        factory: EngineFactory = BACKENDS.get(name)
        return factory
    try:
        factory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the rollout backend '{name}' is refused: {error}; use a registered name or 'module:function'"
        ) from error
    return factory


@functools.lru_cache
def why_not_there(path: str, search: tuple[str, ...]) -> str | None:
    """What is wrong with a "module:function", before anything is started that takes long; None: nothing.

    It is imported in a process of its own: what it imports may be large, and is of no use to the trainer. `search`: the
    module path, which a worker takes over from the trainer. An import that takes more than `IMPORT_LIMIT_S` is left to
    the worker, which has a limit of its own.
    """
    command = [sys.executable, "-c", _IMPORT, path, *search]
    try:
        asked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=IMPORT_LIMIT_S)
    except subprocess.TimeoutExpired:
        return None
    _, failed, reason = asked.stdout.decode(errors="replace").rpartition(f"\n{_FAILED}")
    if failed:
        return " ".join(reason.split())
    return f"importing it ends with code {asked.returncode}" if asked.returncode else None
