"""The arguments of the rollout pipeline, and what they mean together."""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from swift_rlx.backends import BACKENDS, vllm_contract
from swift_rlx.backends.engine import why_not_there
from swift_rlx.backends.remote_endpoint import parse_endpoints
from swift_rlx.errors import ConfigError
from swift_rlx.scheduler.config import MOST_STALENESS

# No `from __future__ import annotations` here: ms-swift's parser evaluates the annotations in another module.


@dataclass
class RolloutFields:
    """New fields of `swift rlhf`; see fields.py."""

    async_rollout: bool = field(
        default=True,
        metadata={
            "help": "[swift-rlx] Generate and score ahead of training, in worker processes. false: the same code"
            " strictly on-policy, each generation batch made by the weights that it trains."
        },
    )
    rollout_backend: str = field(
        default="auto",
        metadata={
            "help": "[swift-rlx] What the workers run: auto (vllm if it is installed and runs on this device, else"
            " transformers), transformers, vllm, remote (running servers), or the name of an installed backend."
        },
    )
    rollout_endpoints: list[str] | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Addresses of running servers of vLLM or SGLang that generate instead of worker"
            " processes, e.g. http://gpu7:8000 http://gpu8:8000. Their key: SWIFT_RLX_API_KEY or"
            " SWIFT_RLX_API_KEY_FILE in the environment."
        },
    )
    rollout_shared_directory: str | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Directory that the servers see too; weights go through it. Default: shared memory for"
            " servers of this machine, else the output directory."
        },
    )
    rollout_workers: int = field(default=1, metadata={"help": "[swift-rlx] Worker processes (replicas)."})
    rollout_devices: str | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Accelerator ids for the workers, e.g. 4,5,6,7, counted as in CUDA_VISIBLE_DEVICES; a"
            " worker takes --vllm_tensor_parallel_size of them. Default: those after the ranks' own."
        },
    )
    rollout_max_inflight: int | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Completions in flight per worker. Default: --vllm_max_num_seqs, else adapted to the"
            " worker's speed and --rollout_target_latency_s."
        },
    )
    rollout_max_inflight_tokens: int | None = field(
        default=None,
        metadata={
            "help": "[swift-rlx] Tokens (prompt and the longest completion) in flight per server of"
            " --rollout_endpoints. Default: no limit."
        },
    )
    rollout_target_latency_s: float = field(
        default=2.0,
        metadata={"help": "[swift-rlx] Seconds that an answer may take where its length allows it."},
    )
    max_staleness: int = field(
        default=2,
        metadata={
            "help": "[swift-rlx] Strict bound: optimizer steps between the weights that made a token and those that"
            " train it, when its generation batch is picked up. 0: strictly on-policy."
        },
    )
    train_order: Literal["completion", "admission"] = field(
        default="completion",
        metadata={
            "help": "[swift-rlx] Which ready group trains next. admission: always the same sequence, slower."
        },
    )
    stale_tokens: Literal["mask", "drop"] = field(
        default="mask",
        metadata={
            "help": "[swift-rlx] Tokens over the bound leave the loss mask; drop: their whole answer does."
        },
    )
    weight_update: Literal["auto", "keep", "pin", "drain", "abort"] = field(
        default="auto",
        metadata={
            "help": "[swift-rlx] Answers in flight when weights are published: keep (go on under the new ones), pin"
            " (finish on those they began with), drain (wait for them), abort. auto: the first of keep, pin and"
            " drain that the backend can."
        },
    )
    rollout_timeout_s: float = field(
        default=300.0,
        metadata={"help": "[swift-rlx] Seconds for one answer, then it is asked from another worker."},
    )
    rollout_retries: int = field(default=3, metadata={"help": "[swift-rlx] Further attempts per answer."})
    rollout_start_timeout_s: float = field(
        default=600.0,
        metadata={"help": "[swift-rlx] Seconds that a worker may take to start, its model loaded."},
    )


@dataclass(frozen=True)
class Bound:
    """A value of an argument is refused unless `at_least <= value <= at_most`, and finite."""

    name: str
    at_least: float
    advice: str
    at_most: float = math.inf

    def holds(self, value: float) -> bool:
        """Whether the value is allowed."""
        return self.at_least <= value <= self.at_most and math.isfinite(value)


BOUNDS = (
    Bound("rollout_workers", 1, "at least one worker generates"),
    Bound("rollout_max_inflight", 1, "a worker answers at least one request at a time"),
    Bound("rollout_max_inflight_tokens", 1, "a request has at least one token"),
    Bound("rollout_target_latency_s", 1e-3, "it is a time in seconds"),
    Bound("max_staleness", 0, f"use 0, which is strictly on-policy, to {MOST_STALENESS}", MOST_STALENESS),
    Bound("rollout_timeout_s", 1e-3, "it is a time in seconds"),
    Bound("rollout_retries", 0, "0 gives up at the first failure"),
    Bound("rollout_start_timeout_s", 1e-3, "it is a time in seconds"),
)
REMOTE = "remote"
NOT_FOR_SERVERS = ("rollout_workers", "rollout_devices")
ONLY_SERVERS = ("rollout_shared_directory", "rollout_max_inflight_tokens")
ONLY_ASYNC = (
    "rollout_backend",
    "rollout_workers",
    "rollout_devices",
    "rollout_endpoints",
    "rollout_shared_directory",
    "rollout_max_inflight",
    "rollout_max_inflight_tokens",
    "rollout_target_latency_s",
    "train_order",
    "stale_tokens",
    "weight_update",
    "rollout_timeout_s",
    "rollout_retries",
    "rollout_start_timeout_s",
)


def resolve_rollout(values: Any, defaults: dict[str, Any]) -> None:
    """Check the fields of the pipeline, in place: `max_staleness` 0 and `async_rollout` false become one thing.

    Raises ConfigError for a value out of range, an unknown backend, and a field that has no effect.
    """
    for bound in BOUNDS:
        value = getattr(values, bound.name)
        if value is not None and not bound.holds(value):
            raise ConfigError(f"--{bound.name} {value:g} is refused: {bound.advice}")
    if values.max_staleness == 0:
        values.async_rollout = False
    if not values.async_rollout:
        changed = [name for name in ONLY_ASYNC if getattr(values, name) != defaults[name]]
        if values.max_staleness not in (0, defaults["max_staleness"]):
            changed.append("max_staleness")
        if changed:
            given = " ".join(f"--{name} {_shown(getattr(values, name))}" for name in changed)
            raise ConfigError(
                f"{given} has no effect without the asynchronous pipeline; drop it, or set --async_rollout true and"
                " --max_staleness 1 or more"
            )
        values.max_staleness = 0
        return
    _resolve_servers(values, defaults)
    names = ("auto", REMOTE, *BACKENDS.names())
    if values.rollout_backend not in names and ":" not in values.rollout_backend:
        raise ConfigError(
            f"--rollout_backend {values.rollout_backend} is not installed; use one of {', '.join(names)}"
        )
    refuse_missing_engine(
        "--rollout_backend", values.rollout_backend, getattr(values, "external_plugins", ())
    )
    device_ids(values.rollout_devices)


def refuse_missing_engine(flag: str, name: str, plugins: Sequence[str] = ()) -> None:
    """Raise ConfigError for vLLM where it is not installed, and for a "module:function" that leads nowhere.

    Imports no engine here. Another registered name is looked up by its worker. `plugins`: files that ms-swift imports
    later on, and whose folders it puts on the module path then.
    """
    if name == "vllm" and vllm_contract.installed_version() is None:
        raise ConfigError(
            f"{flag} vllm is refused: vLLM is not installed; {vllm_contract.INSTALL}, or use {flag} transformers"
        )
    if ":" not in name:
        return
    folders = [os.path.dirname(os.path.abspath(os.path.expanduser(file))) for file in plugins]
    if reason := why_not_there(name, (*folders, *sys.path)):
        raise ConfigError(
            f"{flag} {name} is refused: {reason}; give MODULE:FUNCTION that the workers can import, or the name of an"
            " installed backend"
        )


def _resolve_servers(values: Any, defaults: dict[str, Any]) -> None:
    """`rollout_endpoints` and `rollout_backend` remote are one thing, which excludes worker processes."""
    if not values.rollout_endpoints:
        values.rollout_endpoints = None
        if values.rollout_backend == REMOTE:
            raise ConfigError(
                "--rollout_backend remote is refused without --rollout_endpoints: name the servers, such as"
                " http://gpu7:8000"
            )
        for name in ONLY_SERVERS:
            if (value := getattr(values, name)) != defaults[name]:
                raise ConfigError(f"--{name} {value} has no effect without --rollout_endpoints; drop it")
        return
    parse_endpoints(values.rollout_endpoints)
    if values.rollout_backend not in ("auto", REMOTE):
        raise ConfigError(
            f"--rollout_backend {values.rollout_backend} contradicts --rollout_endpoints, whose servers generate; drop"
            " one of them"
        )
    values.rollout_backend = REMOTE
    for name in NOT_FOR_SERVERS:
        if (value := getattr(values, name)) != defaults[name]:
            raise ConfigError(
                f"--{name} {value} has no effect with --rollout_endpoints: the servers are the workers; drop it"
            )


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def device_ids(text: str | None, flag: str = "rollout_devices") -> tuple[str, ...]:
    """The ids of `--rollout_devices` and its likes. Raises ConfigError unless they are different whole numbers."""
    ids = tuple(part.strip() for part in (text or "").split(",")) if text else ()
    if not all(part.isdigit() for part in ids) or len(set(ids)) < len(ids):
        raise ConfigError(f"--{flag} {text} is refused: give different numbers, such as 4,5,6,7")
    return ids


def visible_devices() -> tuple[str, ...] | None:
    """What CUDA_VISIBLE_DEVICES allows; None where it is not set."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())
