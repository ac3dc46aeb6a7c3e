"""`swift-rlx store generate`: several answers to each prompt of a file."""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift_rlx.cli import store_rewards
from swift_rlx.cli.store_command import (
    StoreCommand,
    chosen_model,
    named_columns,
)
from swift_rlx.cli.store_generate_arguments import generate_arguments
from swift_rlx.errors import ConfigError

if TYPE_CHECKING:
    from swift_rlx.candidates import AskedPrompt, CandidateSettings, Generated, GenerationLimits
    from swift_rlx.cli.reward_pool import RewardPool
    from swift_rlx.integration.candidate_model import CandidateModel, WorkerPlan
    from swift_rlx.store import TrajectoryStore
    from swift_rlx.types import SamplingParams

MAX_SHOWN = 3


@dataclass(frozen=True)
class _Sampler:
    """What answers, and how; nothing of it is started."""

    model: CandidateModel
    settings: CandidateSettings
    plan: WorkerPlan
    limits: GenerationLimits


def _run(options: argparse.Namespace) -> int:
    """Refuse what cannot be used first, then load the tokenizer, and start workers last."""
    from swift_rlx.store import TrajectoryStore

    TrajectoryStore.check_new(options.store)
    asked = _prompts(options)
    _check_numbers(options)
    _check_backend(options.backend)
    chosen_model(options)
    with _reward_pool(options) as pool:
        sampler = _sampler(options)
        _refuse_long_prompts(asked, sampler.model, options.max_tokens)
        store = TrajectoryStore.create(options.store)
        code = 0 if _generate(store, asked, sampler) else 1
        if pool is None:
            print(f"score them with:\n    swift-rlx store score {options.store} --rewards NAME ...")
            return code
        return max(code, store_rewards.score_with(pool, store, options))


def _prompts(options: argparse.Namespace) -> list[AskedPrompt]:
    from swift_rlx.candidates import PromptColumns, read_prompts

    names = named_columns(options.columns)
    if unknown := sorted(set(names) - {"prompt", "id"}):
        raise ConfigError(
            f"--columns {unknown[0]}=... is refused: here a column means prompt or id, and others are kept as they are"
        )
    return read_prompts(
        options.files, PromptColumns(names.get("prompt"), names.get("id", "id")), options.system
    )


def _check_numbers(options: argparse.Namespace) -> None:
    """Raise `ConfigError` for what no model could do."""
    from swift_rlx.candidates import CandidateSettings

    for name, least in {"workers": 1, "max_inflight": 1, "timeout_s": 1, "seal_s": 0}.items():
        if (value := getattr(options, name)) < least:
            raise ConfigError(f"--{name.replace('_', '-')} {value:g} is refused: use at least {least}")
    CandidateSettings(options.n, _samplings(options), options.seed, "")
    _engine_options(options.engine_options)


def _check_backend(wanted: str) -> None:
    """Raise `ConfigError` for a backend that is not installed; reads metadata and imports no engine."""
    from swift_rlx.backends import BACKENDS
    from swift_rlx.integration.rollout_fields import refuse_missing_engine

    names = ("auto", *BACKENDS.names())
    if wanted not in names and ":" not in wanted:
        raise ConfigError(f"--backend {wanted} is not installed; use one of {', '.join(names)}")
    refuse_missing_engine("--backend", wanted)


@contextlib.contextmanager
def _reward_pool(options: argparse.Namespace) -> Iterator[RewardPool | None]:
    """What scores the candidates at once, if the options name rewards."""
    if options.rewards:
        store_rewards.check_weights(options)
        with store_rewards.reward_pool(options, options.rewards) as pool:
            yield pool
    elif options.weights or options.normalize:
        raise ConfigError(
            "--weights and --normalize are refused without --rewards: there is nothing to weigh"
        )
    else:
        yield None


def _engine_options(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"--engine-options {text} is no JSON object; give one, such as '{{\"name\": 1}}'")
    return found


def _sampler(options: argparse.Namespace) -> _Sampler:
    """The model without its weights, and how it is sampled."""
    from swift_rlx.candidates import CandidateSettings, GenerationLimits
    from swift_rlx.candidates.model_digest import model_digest
    from swift_rlx.integration.candidate_model import CandidateModel, WorkerPlan

    model = CandidateModel(**chosen_model(options))
    plan = WorkerPlan(
        backend=model.backend(options.backend),
        workers=options.workers,
        max_inflight=options.max_inflight,
        dtype=options.dtype or model.dtype,
        seed=options.seed,
        options=_engine_options(options.engine_options),
    )
    if plan.options and plan.backend == "transformers":
        raise ConfigError(
            f"--engine-options {options.engine_options} has no effect: the workers run transformers, which has none;"
            " drop it or use --backend vllm"
        )
    model.check_workers(plan)
    engine = f"{plan.backend} {plan.dtype} {options.model}@{model_digest(model.folder)}"
    settings = CandidateSettings(options.n, _samplings(options, model), options.seed, engine)
    limits = GenerationLimits(options.max_inflight, options.workers, options.timeout_s, seal_s=options.seal_s)
    return _Sampler(model, settings, plan, limits)


def _samplings(
    options: argparse.Namespace, model: CandidateModel | None = None
) -> tuple[SamplingParams, ...]:
    from swift_rlx.types import SamplingParams

    ends = None if model is None else model.ends(options.stop)
    return tuple(
        SamplingParams(
            max_tokens=options.max_tokens,
            temperature=temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            stop=() if ends is None else ends.texts,
            stop_token_ids=() if ends is None else ends.token_ids,
            barred_token_ids=() if model is None else model.barred(),
        )
        for temperature in options.temperatures
    )


def _refuse_long_prompts(asked: list[AskedPrompt], model: CandidateModel, max_tokens: int) -> None:
    """Raise before workers are started for a prompt that leaves no room for an answer of `max_tokens`."""
    if model.window is None:
        return
    room = model.window - max_tokens
    if room < 1:
        raise ConfigError(
            f"--max-tokens {max_tokens} leaves no room for a prompt in the model's {model.window} tokens; lower it"
        )
    for one in asked:
        if (count := model.num_tokens_over(one.messages, room)) is not None:
            raise one.row.refused(
                f"its prompt has {count} tokens, and --max-tokens {max_tokens} leaves {room} of the model's"
                f" {model.window}; shorten it or lower --max-tokens"
            )


def _generate(store: TrajectoryStore, asked: list[AskedPrompt], sampler: _Sampler) -> bool:
    """Generate what the store lacks, with a progress bar; whether all prompts have candidates now."""
    from tqdm import tqdm

    from swift_rlx.candidates.generation import generate, lacking
    from swift_rlx.types import PolicyVersion

    model, settings = sampler.model, sampler.settings
    due = lacking(store, asked, settings.writer)
    if before := len(asked) - len(due):
        print(f"{before:,} of {len(asked):,} prompts have their answers in the store already")
    if not due:
        return True
    most = max(model.most_tokens(one.messages) for one in due) + settings.samplings[0].max_tokens
    with tempfile.TemporaryDirectory(prefix="swift-rlx-generate-") as folder:
        crew = model.crew(
            sampler.plan, most, Path(folder)
        )  # its workers' output is in the errors that end it
        with tqdm(
            total=len(asked) * settings.count,
            initial=before * settings.count,
            unit=" answers",
            dynamic_ncols=True,
        ) as bar:
            done = generate(
                store,
                due,
                settings,
                lambda: crew.start(PolicyVersion(), None),
                model,
                sampler.limits,
                lambda count: bar.update(count * settings.count),
            )
    _report(done)
    return not done.failed


def _report(done: Generated) -> None:
    print(f"generated {done.rows:,} answers to {done.groups:,} prompts, {done.tokens:,} tokens")
    if done.failed:
        print(f"{len(done.failed):,} prompts have no answers, such as these; run it again to try them again")
        for asked, why in done.failed[:MAX_SHOWN]:
            print(f"    {asked.row.file}, row {asked.place + 1}: {why}")


COMMANDS = {
    "generate": StoreCommand(
        "generate several answers to each prompt of a file",
        "answers.store prompts.jsonl --model Qwen/Qwen2.5-0.5B-Instruct --n 8 --temperatures 0.5 0.7 1 --top-p 0.9\n\n"
        "It may be stopped or killed at any time: begun again, it goes on where it was, and nothing is there twice.",
        generate_arguments,
        _run,
    ),
}
