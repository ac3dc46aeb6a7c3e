"""How each rollout worker of our own is described to start: its engine, its model, its devices."""

import json
import os
from collections.abc import Sequence
from typing import Any

import torch
from peft import PeftModel
from swift.utils import get_logger
from torch import nn

from swift_rlx.backends import EngineSpec
from swift_rlx.backends.vllm_contract import why_not
from swift_rlx.errors import ConfigError
from swift_rlx.integration.placement import this_machine, worker_devices
from swift_rlx.integration.worker_model import is_resized, vocabulary_of
from swift_rlx.scheduler import RolloutConfig
from swift_rlx.trainers.startup import longest_prompt
from swift_rlx.types import PolicyVersion

logger = get_logger()
BEFORE_FIRST = PolicyVersion(-1, 0)
"""What a worker serves that has not been given the trainer's weights."""
SWIFT_LOADER = "swift_rlx.integration.worker_model:load"
SWIFT_OPTIONS = ("attn_impl", "experts_impl", "rope_scaling", "new_special_tokens")


def choose_backend(
    wanted: str, is_multimodal: bool, has_accelerator: bool = False, flag: str = "--rollout_backend"
) -> str:
    """`auto` resolved: vLLM where it is installed for this device and can take the prompts, else transformers.

    `flag`: as the user types it. Raises ConfigError for vLLM with images and the like: it is given token ids only.
    """
    if wanted == "vllm" and is_multimodal:
        raise ConfigError(
            f"{flag} vllm is refused for a multimodal model: it takes prompts of text only; use {flag} transformers"
        )
    if wanted != "auto":
        return wanted
    reason = "it is given no images" if is_multimodal else why_not(has_accelerator)
    logger.info(f"rollout workers run {'transformers, not vLLM: ' + reason if reason else 'vLLM'}")
    return "transformers" if reason else "vllm"


def engine_specs(trainer: Any, name: str, config: RolloutConfig) -> tuple[EngineSpec, ...]:
    """One description a worker. Raises ConfigError where there is no accelerator for it."""
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    options = dict(args.rlx_engine_options)
    if options and name != "vllm":
        raise ConfigError(
            f"{', '.join(f'vllm {key}={value}' for key, value in options.items())} has no effect: the rollout workers"
            f" run {name}; drop it or use --rollout_backend vllm"
        )
    devices = args.rlx_worker_devices
    if devices is None:  # an RLXConfig made in Python
        devices = worker_devices(args, this_machine(args.use_cpu))
    not_for_engine = ("max_model_len", "max_num_seqs")  # the spec has them
    adapter = model.peft_config["default"] if hasattr(model, "peft_config") else None
    info, needs_swift = trainer.template.model_info, _needs_swift(trainer)
    return tuple(
        EngineSpec(
            name=name,
            model=info.model_dir,
            version=BEFORE_FIRST,
            loader=SWIFT_LOADER if needs_swift else None,
            loader_options=_loader_options(trainer) | {"num_devices": len(ids)} if needs_swift else {},
            dtype=str(_dtype(model)).removeprefix("torch."),
            devices=tuple(ids),
            max_model_len=options.get("max_model_len") or _most_tokens(trainer, name, ids),
            max_inflight=config.most_inflight(args.rollout_workers),
            max_adapter_rank=max(16, getattr(adapter, "r", 0) or 0) if adapter is not None else 0,
            not_loaded=tuple(sorted(_not_loaded(model))),
            memory_share=1.0 if ids else 1.0 / args.rollout_workers,
            seed=args.seed,
            options={k: v for k, v in options.items() if k not in not_for_engine}
            | (
                {"weight_update": args.weight_update}
                if name == "vllm" and args.weight_update != "auto"
                else {}
            ),
        )
        for ids in devices
    )


def _dtype(model: nn.Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters() if p.is_floating_point())


def _most_tokens(trainer: Any, name: str, devices: Sequence[str]) -> int | None:
    """Of a prompt with its answer; the model's own limit where that is not known, or costs nothing.

    On a CPU vLLM reads a whole prompt in one step and sizes that, and the memory that it takes, for the longest one.
    """
    window: int | None = trainer.template.model_info.max_model_len
    if name != "vllm" or devices or trainer.multi_turn_scheduler is not None:
        return window
    longest = longest_prompt(trainer.train_dataset, trainer.template)
    if longest is None:
        return window
    most = longest + int(trainer.args.max_completion_length)
    return most if window is None else min(window, most)


def _not_loaded(model: nn.Module) -> set[str]:
    """Patterns of tensors that transformers leaves in the files of this model, such as those of further heads."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    return set(getattr(base, "_keys_to_ignore_on_load_unexpected", None) or ())


def _needs_swift(trainer: Any) -> bool:
    """Whether ms-swift's own loader has to build the model: images, remote code, or other than its files say."""
    template = trainer.template
    with open(os.path.join(template.model_info.model_dir, "config.json"), encoding="utf-8") as file:
        has_remote_code = "auto_map" in json.load(file)
    is_changed = trainer.args.rope_scaling or is_resized(trainer.accelerator.unwrap_model(trainer.model))
    return bool(template.model_meta.is_multimodal or has_remote_code or is_changed)


def _loader_options(trainer: Any) -> dict[str, Any]:
    info, args = trainer.template.model_info, trainer.args
    given = {name: getattr(args, name) for name in SWIFT_OPTIONS}
    return {
        "model_type": info.model_type,
        "dtype": str(info.torch_dtype).removeprefix("torch."),
        "vocabulary": vocabulary_of(trainer.accelerator.unwrap_model(trainer.model)),
        "plugins": [os.path.abspath(path) for path in args.external_plugins],
        **{name: value for name, value in given.items() if value},
    }
