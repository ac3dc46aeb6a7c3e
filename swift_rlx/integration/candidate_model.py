"""A model that generates candidates: what encodes its prompts, and the workers that have it. No trainer is there."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swift_rlx.backends import EngineSpec
from swift_rlx.errors import ConfigError
from swift_rlx.integration.answer_ends import AnswerEnds, answer_ends
from swift_rlx.integration.devices import place_workers
from swift_rlx.integration.message_encoding import encoded, template_of
from swift_rlx.integration.placement import this_machine
from swift_rlx.trainers.crew import ProcessCrew
from swift_rlx.trainers.engine_specs import SWIFT_LOADER, choose_backend
from swift_rlx.trainers.pipeline import worker_environment
from swift_rlx.trainers.pipeline_plan import STALL_S
from swift_rlx.trainers.prompt_encoding import barred_tokens, own_template
from swift_rlx.trainers.startup import template_overhead
from swift_rlx.types import IntArray


@dataclass(frozen=True)
class WorkerPlan:
    """`backend`: the name of an engine; `dtype`: of the weights; `options`: the engine's own.

    `max_inflight`: completions that one worker is built for.
    """

    backend: str
    dtype: str
    workers: int = 1
    max_inflight: int = 256
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)


class CandidateModel:
    """`model`: id or directory; its files are downloaded, and only the tokenizer is loaded here.

    `hub`: what ms-swift's `get_processor` takes beside it, such as `use_hf`. Raises ConfigError where that fails.
    """

    def __init__(self, model: str, template: str | None = None, **hub: Any) -> None:
        self._template = own_template(template_of(model, template, download_model=True, **hub))
        self._reader = own_template(self._template)  # fast tokenizers must not be used by two threads at once

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return Path(self._template.model_info.model_dir)

    @property
    def window(self) -> int | None:
        """Tokens of a prompt with its answer at most; None: not known."""
        limit: int | None = self._template.model_info.max_model_len
        return limit

    @property
    def dtype(self) -> str:
        """Of the weights, as the configuration says."""
        return str(self._template.model_info.torch_dtype).removeprefix("torch.")

    def ends(self, words: Sequence[str]) -> AnswerEnds:
        """What ends an answer: `words` and what the template says."""
        return answer_ends(self._template, list(words))

    def barred(self) -> tuple[int, ...]:
        """Tokens that an answer must not have."""
        ids: tuple[int, ...] = barred_tokens(self._template)
        return ids

    def backend(self, wanted: str) -> str:
        """`auto` resolved, as in training."""
        is_multimodal = self._template.model_meta.is_multimodal
        name: str = choose_backend(wanted, is_multimodal, _has_accelerator(), "--backend")
        return name

    def prompt(self, messages: list[dict[str, Any]]) -> list[int]:
        """The prompt up to where the answer begins. Raises ConfigError for what cannot be encoded."""
        return encoded(self._template, messages)

    def most_tokens(self, messages: list[dict[str, Any]]) -> int:
        """A prompt has no more: a token is a byte at least."""
        of_template: int = template_overhead(self._template)
        return of_template + sum(len(str(one["content"]).encode()) + 64 for one in messages)

    def num_tokens_over(self, messages: list[dict[str, Any]], limit: int) -> int | None:
        """How many tokens a prompt has, where these are more than `limit`; short ones are not encoded to know it."""
        if self.most_tokens(messages) <= limit:
            return None
        count = len(self.prompt(messages))
        return count if count > limit else None

    def text(self, token_ids: IntArray) -> str:
        """An answer without the tokens that only end it, as rewards see it in training."""
        return str(self._reader.decode_generate_ids(np.asarray(token_ids).tolist()))

    def check_workers(self, plan: WorkerPlan) -> None:
        """Raise ConfigError where this machine has no room for them, before anything is made."""
        _devices(plan.workers, plan.options)

    def crew(self, plan: WorkerPlan, most_tokens: int, run_directory: Path) -> ProcessCrew:
        """The workers, not started; `most_tokens`: of any prompt with its answer.

        Raises ConfigError where this machine has no room for them.
        """
        devices = _devices(plan.workers, plan.options)
        if not any(devices):
            cores = len(os.sched_getaffinity(0)) // plan.workers
            torch.set_num_threads(max(1, min(cores, torch.get_num_threads())))
        specs = tuple(self._spec(plan, ids, most_tokens) for ids in devices)
        environments = tuple(worker_environment(spec) for spec in specs)
        return ProcessCrew(specs, environments, run_directory, stall_limit_s=STALL_S)

    def _spec(self, plan: WorkerPlan, devices: Sequence[str], most_tokens: int) -> EngineSpec:
        info, needs_swift, options = self._template.model_info, self._needs_swift(), plan.options
        loader = {"model_type": info.model_type, "dtype": plan.dtype, "num_devices": len(devices)}
        not_for_engine = ("max_model_len", "max_num_seqs")  # the spec has them
        return EngineSpec(
            name=plan.backend,
            model=info.model_dir,
            loader=SWIFT_LOADER if needs_swift else None,
            loader_options=loader if needs_swift else {},
            dtype=plan.dtype,
            devices=tuple(devices),
            max_model_len=options.get("max_model_len") or self._limit(plan.backend, devices, most_tokens),
            max_inflight=options.get("max_num_seqs") or plan.max_inflight,
            memory_share=1.0 if devices else 1.0 / plan.workers,
            seed=plan.seed,
            options={name: value for name, value in options.items() if name not in not_for_engine},
        )

    def _limit(self, backend: str, devices: Sequence[str], most_tokens: int) -> int | None:
        """On a CPU vLLM takes memory for texts of this length; elsewhere the model's own limit costs nothing."""
        if backend != "vllm" or devices:
            return self.window
        return most_tokens if self.window is None else min(most_tokens, self.window)

    def _needs_swift(self) -> bool:
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        return bool(self._template.model_meta.is_multimodal or "auto_map" in config)


def _has_accelerator() -> bool:
    return bool(this_machine(use_cpu=False).accelerators)


def _devices(workers: int, options: dict[str, Any]) -> list[tuple[str, ...]]:
    """Accelerators of each worker: nothing trains, so all are theirs."""
    per_worker = int(options.get("tensor_parallel_size", 1)) * int(options.get("pipeline_parallel_size", 1))
    machine = this_machine(use_cpu=False)
    visible = machine.accelerators
    if not visible and workers > machine.most_workers:
        raise ConfigError(
            f"--workers {workers} is refused: without an accelerator at most {machine.most_workers} may share the"
            f" {machine.cores} core(s); use fewer"
        )
    if visible and workers * per_worker > len(visible):
        raise ConfigError(
            f"--workers {workers} of {per_worker} accelerator(s) each are refused: {len(visible)} are visible"
            f" ({','.join(visible)}); use fewer, or name others in CUDA_VISIBLE_DEVICES"
        )
    return place_workers(replace(machine, ranks=0), workers, (), per_worker)
